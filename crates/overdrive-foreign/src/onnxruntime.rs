//! ONNX Runtime (MIT): its CPU provider as an engine, and each of its other providers as one.
//!
//! Modes are its levels of graph optimisation: `eager` none, `jit` basic, `compile` all. A provider
//! that compiles whole graphs has `compile` only; the CUDA provider replays what it has captured in
//! mode `graph`. Providers for GPUs take inputs and leave outputs in the GPU's memory. Invariant: a
//! node that the provider would leave to the CPU is an error.

mod gpu;
mod library;
mod plugin;
mod provider;
mod session;
mod values;

use crate::device::DeviceAllocator;
use crate::engine::{Engine, EngineDevice, FoundEngine, Missing, OpenRequest, Places};
use crate::host_backend::HostBackend;
use gpu::Gpu;
use library::Library;
use overdrive_ir::{Backend, Mode};
pub(crate) use provider::Provider;
use session::Sessions;
use std::sync::Arc;

impl Provider {
    /// The package of Python whose library has it.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Cpu => "onnxruntime",
            Self::OpenVino => "onnxruntime-openvino",
            Self::Cuda | Self::TensorRt => "onnxruntime-gpu",
            Self::TensorRtRtx => "onnxruntime-ep-nv-tensorrt-rtx-cu13",
        }
    }

    fn missing(self, reason: impl ToString) -> Missing {
        let package = self.package();
        let more = match self {
            Self::Cpu | Self::OpenVino => "",
            Self::TensorRtRtx => " beside `onnxruntime` 1.24 or newer; it needs an RTX card",
            Self::Cuda => {
                ", and have the libraries of CUDA 13 and cuDNN 9 where the system finds them"
            }
            Self::TensorRt => {
                ", and have libnvinfer.so.10 and libnvonnxparser.so.10 where the system finds \
                 them: TensorRT 10, not 11"
            }
        };
        Missing {
            engine: self.name().to_owned(),
            reason: reason.to_string(),
            remedy: format!(
                "`overdrive info --install {package}`, or `pip install {package}`{more}"
            ),
        }
    }

    /// The error for an engine that is present and does not start.
    fn refused(self, reason: String) -> Missing {
        match self {
            // It reports nothing about a device that it does not support; its library names these.
            Self::TensorRtRtx => Missing {
                engine: self.name().to_owned(),
                reason,
                remedy: "it takes RTX cards of compute capability 8.6, 8.9, 12.0 and newer, which \
                         data centres' cards are \
                         not, and a driver for CUDA 13; elsewhere use `xla`, `onnxruntime-cuda`, \
                         or TensorRT 10 as `tensorrt`"
                    .to_owned(),
            },
            _ => self.missing(reason),
        }
    }

    /// The library, if it was built with this provider.
    fn library(self, places: &Places) -> Result<&'static Library, Missing> {
        let library = Library::load(places).map_err(|reason| self.missing(reason))?;
        if self == Self::TensorRtRtx {
            return plugin::locate(places).map(|_| library).map_err(|reason| self.missing(reason));
        }
        if library.has(self) {
            return Ok(library);
        }
        let place = library.path.display();
        Err(self.missing(format!("the ONNX Runtime at {place} was built without it")))
    }
}

impl Engine for Provider {
    fn name(&self) -> &'static str {
        match self {
            Self::Cpu => "onnxruntime",
            Self::OpenVino => "onnxruntime-openvino",
            Self::Cuda => "onnxruntime-cuda",
            Self::TensorRt => "tensorrt",
            Self::TensorRtRtx => "tensorrt-rtx",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Cpu => "ONNX Runtime's own kernels",
            Self::OpenVino => "OpenVINO, as a provider of ONNX Runtime",
            Self::Cuda => "CUDA kernels of ONNX Runtime",
            Self::TensorRt => "TensorRT 10, as a provider of ONNX Runtime",
            Self::TensorRtRtx => {
                "TensorRT-RTX, as a provider of ONNX Runtime in a library of its own"
            }
        }
    }

    fn modes(&self) -> &'static [Mode] {
        match self {
            Self::Cpu => &[Mode::Eager, Mode::Jit, Mode::Compile],
            Self::Cuda => &Mode::ALL,
            Self::OpenVino | Self::TensorRt | Self::TensorRtRtx => &[Mode::Compile],
        }
    }

    fn runs_on(&self) -> EngineDevice {
        match self {
            Self::Cpu | Self::OpenVino => EngineDevice::Processor,
            Self::Cuda | Self::TensorRt | Self::TensorRtRtx => EngineDevice::Gpu,
        }
    }

    fn find(&self, places: &Places) -> Result<FoundEngine, Missing> {
        let library = self.library(places)?;
        let (version, path) = (library.version.clone(), library.path.clone());
        if *self == Self::TensorRtRtx {
            let path = plugin::locate(places).map_err(|reason| self.missing(reason))?;
            let version = format!("{} in ONNX Runtime {version}", plugin::version(&path));
            return Ok(FoundEngine { version, library: Some(path) });
        }
        Ok(FoundEngine { version, library: Some(path) })
    }

    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Backend>, Missing> {
        let library = self.library(request.places)?;
        let target = request.target();
        let original = request.original.cloned();
        let plugin = match self {
            Self::TensorRtRtx => {
                Some(plugin::locate(request.places).map_err(|reason| self.missing(reason))?)
            }
            _ => None,
        };
        let ordinal = request.ordinal;
        let mut engine =
            Sessions { provider: *self, library, target, ordinal, original, plugin, device: None };
        // The parts that a provider needs beside the library are looked for when it is registered:
        // here, not in the first model.
        engine.builder(Mode::Compile, request.threads).map_err(|reason| self.refused(reason))?;
        if self.runs_on() == EngineDevice::Gpu {
            let gpu = Gpu::open(ordinal).map_err(|reason| self.refused(reason))?;
            engine.device = Some(Arc::new(gpu) as Arc<dyn DeviceAllocator>);
        }
        Ok(Box::new(HostBackend { engine, threads: request.threads }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_for_gpus_say_what_to_get() {
        let places =
            Places { named: [("onnxruntime".to_owned(), "/none".into())].into(), installed: None };
        for (provider, words) in [
            (Provider::Cuda, ["onnxruntime-gpu", "CUDA 13", "cuDNN 9"]),
            (Provider::TensorRt, ["onnxruntime-gpu", "libnvinfer.so.10", "not 11"]),
            (Provider::TensorRtRtx, ["onnxruntime-ep-nv-tensorrt-rtx-cu13", "1.24", "RTX card"]),
        ] {
            let said = provider.find(&places).map(|found| found.version).unwrap_err().to_string();
            assert!(said.starts_with(provider.name()), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        let said = Provider::TensorRtRtx.refused("none of the devices".to_owned()).to_string();
        assert!(said.contains("none of the devices") && said.contains("8.6, 8.9, 12.0"), "{said}");
    }
}
