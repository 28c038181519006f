//! The CPU back end: a thread pool, SIMD kernels, GEMM.
pub mod threads;
