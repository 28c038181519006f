//! Other people's engines and libraries, one file each, as baselines beside ours.
//!
//! An engine is a back end like ours ([`Engine`]); `docs/engines.md` says how to add one. Libraries
//! of vendors are loaded when the program runs. Invariants: each is called in the way that its own
//! documentation calls fastest, with as many threads as ours. Work that an engine hands back to its
//! own CPU path without being asked is an error, not a figure.

#[cfg_attr(not(feature = "onnxruntime"), allow(dead_code))]
mod device;
mod engine;
mod engine_buffer;
mod gemm_crate;
mod host_backend;
mod install;
mod matmul;
mod onnx_model;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod python;
mod registry;
mod rten;
#[cfg(feature = "tract")]
mod tract;
#[cfg(feature = "xla")]
pub mod xla;

pub use engine::{Engine, EngineDevice, FoundEngine, Missing, OpenRequest, OriginalFile, Places};
pub use gemm_crate::gemm_matmul;
pub use install::{Installed, install};
pub use matmul::Matmul;
pub use registry::{ENGINES, LEFT_OUT, find};
pub use rten::rten_matmul;

/// Every library with a product in f32, by its crate's name.
pub static MATMULS: &[(&str, Matmul)] = &[("gemm", gemm_matmul), ("rten-gemm", rten_matmul)];
