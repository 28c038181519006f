//! `quantized_linear` of float activations: which of them have a kernel, and its launch.

mod rows;
mod shape;

pub(super) use rows::KERNEL;
