//! A graph as StableHLO text, for XLA and whatever else reads it.
//! <https://openxla.org/stablehlo/spec>
//!
//! The text has one `func.func @main`. Its arguments are the graph's inputs and then its states.
//! Its results are the outputs and then the new values of the states that are updated. All are in
//! order of declaration. Every op stands in MLIR's generic form, which needs one rule for all of
//! them and has not changed between versions. Composites are written as their expansion.
//!
//! Invariant: the text means what the graph means. That includes an index out of range, a division
//! by zero, and a value beyond a format. Otherwise there is an error that lists all that XLA cannot
//! say.

mod contraction;
mod control;
mod convert;
mod elementwise;
mod indexing;
mod literal;
mod module;
mod prim;
mod random;
mod reductions;
mod writer;

pub use module::{text, write};
