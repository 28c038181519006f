//! The CUDA back end: kernels against the f64 definition, and plans.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod attention_threshold;
mod block_masks;
mod decoding;
mod draw;
mod float8_attention;
mod gemm;
mod kernels;
mod kernels_compile;
mod loops;
mod low_precision;
mod moments;
mod offload;
mod ops;
mod paged_attention;
mod plans;
mod quantized_attention;
mod random_graphs;
mod sessions;
mod sparse_linear;
mod support;
mod together;
