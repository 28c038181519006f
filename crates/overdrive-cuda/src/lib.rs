//! The CUDA back end: plans on NVIDIA GPUs, from a binary that was built where there is no CUDA at
//! all.
//!
//! Driver, NVRTC, cuBLASLt and NCCL are loaded at run time; a missing one is an `Err` that names
//! the package to install. Invariant: compiling a step does all that can fail or take long, so that
//! running it only enqueues launches.
#![allow(unsafe_code)]

mod backend;
pub mod cache;
pub mod choices;
pub mod compiler;
pub mod data_sheets;
pub mod device;
mod draw;
mod entry;
pub mod error;
mod exec;
pub mod fabrics;
pub mod gemm;
mod host_cores;
mod host_loop;
mod host_memory;
mod joined;
pub mod kernels;
pub mod launch;
pub mod libraries;
pub mod loops;
pub mod memory;
mod nccl;
mod occupancy;
mod peers;
pub mod pinned;
pub mod pool;
mod staging;
mod tensor_map;
mod wgmma;

pub use backend::{CudaBackend, Gpu, gpus};
pub use device::Device;
pub use error::Error;
pub use libraries::Library;
