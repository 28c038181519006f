//! The CPU back end: a thread pool, SIMD kernels, GEMM.
pub mod gemm;
pub mod loops;
pub mod memory;
pub mod slots;
pub mod threads;
