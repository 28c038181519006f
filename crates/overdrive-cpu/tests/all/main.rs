//! The CPU back end against the f64 definition.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod attention;
mod attention_captures;
mod attention_random;
mod attention_threshold;
mod codes;
mod convolution;
mod convolution_chains;
mod convolution_direct;
mod convolution_folds;
mod executor;
mod experts;
mod gemm;
mod kernels;
mod loops;
mod loops_math;
mod models;
mod offload;
mod ops;
mod orders;
mod paged_attention;
mod products;
mod quantized;
mod quantized_attention;
mod random_graphs;
mod ranks;
mod sessions;
mod support;
