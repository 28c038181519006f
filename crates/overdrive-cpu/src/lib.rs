//! The CPU back end: a thread pool, SIMD kernels, GEMM, and the executor of plans.
mod backend;
mod exec;
pub mod gemm;
mod isa;
mod kernels;
pub mod loops;
pub mod memory;
mod peaks;
pub mod quantized;
pub mod slots;
pub mod stream;
pub mod threads;

pub use backend::CpuBackend;
pub use exec::CpuExecutable;
pub use isa::{InstructionSet, UnknownSet};
