//! Other people's engines and libraries, one file each, as baselines beside ours.
//!
//! An engine is a back end like ours ([`Engine`]); `docs/engines.md` says how to add one. Libraries
//! of vendors are loaded when the program runs. Invariant: each is called as its own documentation
//! says is fastest, with as many threads as ours; and what it hands back to its own CPU path
//! without being asked is an error, not a figure.

mod call;
#[cfg_attr(not(feature = "onnxruntime"), allow(dead_code))]
mod device;
mod engine;
mod gemm_crate;
mod host;
mod install;
mod matmul;
mod onnx_model;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod python;
mod rten;
#[cfg(feature = "tract")]
mod tract;
#[cfg(feature = "xla")]
pub mod xla;

pub use engine::{Engine, Found, Missing, OriginalFile, Place, Places, Request, find};
pub use gemm_crate::gemm_matmul;
pub use install::{Installed, install};
pub use matmul::{MATMULS, Matmul};
pub use rten::rten_matmul;

/// The engines of this build, in the order of tables.
pub const ENGINES: &[&dyn Engine] = &[
    #[cfg(feature = "onnxruntime")]
    &onnxruntime::Provider::Cpu,
    #[cfg(feature = "onnxruntime")]
    &onnxruntime::Provider::OpenVino,
    #[cfg(feature = "onnxruntime")]
    &onnxruntime::Provider::Cuda,
    #[cfg(feature = "onnxruntime")]
    &onnxruntime::Provider::TensorRt,
    #[cfg(feature = "onnxruntime")]
    &onnxruntime::Provider::TensorRtRtx,
    #[cfg(feature = "tract")]
    &tract::Tract,
    #[cfg(feature = "xla")]
    &xla::Xla::Gpu,
    #[cfg(feature = "xla")]
    &xla::Xla::Processor,
];

/// Engines that another build has, each with the feature that it needs.
pub const LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "onnxruntime"))]
    ("onnxruntime", "onnxruntime"),
    #[cfg(not(feature = "onnxruntime"))]
    ("onnxruntime-openvino", "onnxruntime"),
    #[cfg(not(feature = "onnxruntime"))]
    ("onnxruntime-cuda", "onnxruntime"),
    #[cfg(not(feature = "onnxruntime"))]
    ("tensorrt", "onnxruntime"),
    #[cfg(not(feature = "onnxruntime"))]
    ("tensorrt-rtx", "onnxruntime"),
    #[cfg(not(feature = "tract"))]
    ("tract", "tract"),
    #[cfg(not(feature = "xla"))]
    ("xla", "xla"),
    #[cfg(not(feature = "xla"))]
    ("xla-cpu", "xla"),
];
