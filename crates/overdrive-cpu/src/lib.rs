//! The CPU back end: a thread pool, SIMD kernels, GEMM.
pub mod gemm;
pub mod threads;
