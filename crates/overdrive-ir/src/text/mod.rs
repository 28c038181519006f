//! IR text: the form in which people read graphs. It is stored beside results and snapshotted by
//! tests.
//!
//! ```text
//! overdrive-ir 1
//! graph "tiny" {
//!   input %0 "x" f32[batch, 4]
//!   state %1 "fc.weight" f32[4, 2] {"uniform":{"bound":0.5,"seed":0}}
//!   %2 = linear(%0, %1) : f32[batch, 2] at "fc"
//!   %3 = softmax(%2) {"axis":1} : f32[batch, 2]
//!   output "y" %3
//! }
//! ```
//!
//! The number after `overdrive-ir` is the version of this syntax and of the primitives. A composite
//! whose meaning has changed since its first version is written `name@2`. Attributes are a JSON
//! object, strings are JSON strings, and regions follow their node in braces. White space separates
//! words and means nothing else. Invariant: parsing a printed graph gives an equal graph, which
//! prints as the same text.

mod lexer;
pub mod number;
mod parser;
mod printer;

pub use lexer::ParseError;
pub use printer::VERSION;
