//! Other people's engines and libraries, one file each, as baselines beside ours.
//!
//! Invariant: each is called as its own documentation says is fastest, with as many threads as ours.

mod gemm_crate;
mod matmul;
mod rten;

pub use gemm_crate::gemm_matmul;
pub use matmul::{MATMULS, Matmul};
pub use rten::rten_matmul;
