//! The engines of this build, and those that another one has.

use crate::engine::{Engine, Missing};
#[cfg(feature = "onnxruntime")]
use crate::onnxruntime::Provider;
#[cfg(feature = "tract")]
use crate::tract::Tract;
#[cfg(feature = "xla")]
use crate::xla::Xla;

/// The engines of this build, in the order of tables.
pub const ENGINES: &[&dyn Engine] = &[
    #[cfg(feature = "onnxruntime")]
    &Provider::Cpu,
    #[cfg(feature = "onnxruntime")]
    &Provider::OpenVino,
    #[cfg(feature = "onnxruntime")]
    &Provider::Cuda,
    #[cfg(feature = "onnxruntime")]
    &Provider::TensorRt,
    #[cfg(feature = "onnxruntime")]
    &Provider::TensorRtRtx,
    #[cfg(feature = "tract")]
    &Tract,
    #[cfg(feature = "xla")]
    &Xla::Gpu,
    #[cfg(feature = "xla")]
    &Xla::Processor,
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

/// The engine of this name in this build.
///
/// # Errors
/// With the feature that it needs, where another build has it; with every name that there is, where
/// none has.
pub fn find(name: &str) -> Result<&'static dyn Engine, Missing> {
    if let Some(engine) = ENGINES.iter().find(|engine| engine.name() == name) {
        return Ok(*engine);
    }
    let missing =
        |reason: String, remedy: String| Missing { engine: name.to_owned(), reason, remedy };
    Err(match LEFT_OUT.iter().find(|(left_out, _)| *left_out == name) {
        Some((_, feature)) => missing(
            "this build leaves it out".to_owned(),
            format!("build with `cargo build --release --features {feature}`"),
        ),
        None => {
            let names: Vec<&str> = ENGINES.iter().map(|engine| engine.name()).collect();
            missing(
                "no engine has this name".to_owned(),
                format!(
                    "this build knows {}",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                ),
            )
        }
    })
}
