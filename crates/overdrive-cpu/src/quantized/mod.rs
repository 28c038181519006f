//! Products by weights that are kept as codes: `y = x w^T`, with `w = (code - zero) * scale`, of
//! f32 activations.
//!
//! For a few rows of x, the bandwidth of the weights is the bound. So codes are decoded in
//! registers (`strips`, `x86`, `decode`; else `portable`). For many rows they are decoded while the
//! panels of the f32 product are packed (`columns`, `panels`). If the CPU has bf16 tiles, each f32
//! is split into three bf16 and multiplied by codes packed as bf16 (`split`, `pairs`). That is as
//! exact and a third of the work. Codes are read in the layout of the model, so that a weight is in
//! memory once. If activations are quantized too, that happens row by row (`activations`), and the
//! product is one of codes.
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
