//! Products by weights that are kept as codes: `y = x w^T`, with `w = (code - zero) * scale`, of
//! f32 activations.
//!
//! The bound for a few rows of x is how fast memory delivers the weights. So codes become numbers
//! in registers (`strips`, `x86`, `decode`; `portable` where no such path is). For many rows they
//! become numbers on their way into the panels of the f32 product (`columns`, `panels`). Where the
//! CPU has tiles of bf16, an f32 is the sum of three bf16, and the codes go into the panels of its
//! product with those (`split`, `pairs`). That is as exact and a third of the work. Codes are read
//! as they lie, so that a weight is in memory once. Where activations are codes too, they become
//! that row by row (`activations`), and the product is one of codes.
//!
//! Invariants: any format of codes and any group goes through `QuantizedMatrix::decode`, which is
//! the definition in f32. The faster ways agree with it but for the order of sums. Results do not
//! depend on the number of threads.

mod activations;
mod columns;
#[cfg(target_arch = "x86_64")]
mod decode;
mod finish;
mod linear;
mod matrix;
mod numbers;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod panels;
mod portable;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod strips;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use activations::RowQuantizer;
pub use linear::{linear, room_floats};
pub use matrix::QuantizedMatrix;
pub use numbers::PackedNumbers;
