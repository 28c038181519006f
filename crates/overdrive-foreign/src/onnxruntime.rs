//! ONNX Runtime (MIT): its CPU provider as an engine, and each of its other providers as one.
//!
//! Modes are its levels of graph optimisation: `eager` none, `jit` basic, `compile` all. A provider that compiles whole graphs
//! has `compile` only. Invariant: a node that the provider would leave to the CPU is an error.

mod library;
mod session;

use crate::call::HostBackend;
use crate::engine::{Engine, Found, Missing, Place, Places, Request};
use library::Library;
use overdrive_ir::{Backend, Caps, Mode};
use session::Sessions;

/// Who runs the nodes of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    /// MLAS, part of every build of the library.
    Cpu,
    /// Intel's compiler, on the processor.
    OpenVino,
    /// Kernels, cuBLAS and cuDNN.
    Cuda,
    /// NVIDIA's compiler.
    TensorRt,
}

impl Provider {
    /// The package of Python whose library has it.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Cpu => "onnxruntime",
            Self::OpenVino => "onnxruntime-openvino",
            Self::Cuda | Self::TensorRt => "onnxruntime-gpu",
        }
    }

    fn missing(self, reason: impl ToString) -> Missing {
        let package = self.package();
        let more = match self {
            Self::Cpu | Self::OpenVino => "",
            Self::Cuda => ", and have the libraries of CUDA 13 and cuDNN 9 where the system finds them",
            Self::TensorRt => {
                ", and have libnvinfer.so.10 and libnvonnxparser.so.10 where the system finds them: TensorRT 10, not 11"
            }
        };
        Missing {
            engine: self.name().to_owned(),
            reason: reason.to_string(),
            remedy: format!("`overdrive info --install {package}`, or `pip install {package}`{more}"),
        }
    }

    /// The library, if it was built with this provider.
    fn library(self, places: &Places) -> Result<&'static Library, Missing> {
        let library = Library::load(places).map_err(|reason| self.missing(reason))?;
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
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Cpu => "ONNX Runtime's own kernels",
            Self::OpenVino => "OpenVINO, as a provider of ONNX Runtime",
            Self::Cuda => "CUDA kernels of ONNX Runtime",
            Self::TensorRt => "TensorRT 10, as a provider of ONNX Runtime",
        }
    }

    fn modes(&self) -> &'static [Mode] {
        match self {
            Self::Cpu | Self::Cuda => &[Mode::Eager, Mode::Jit, Mode::Compile],
            Self::OpenVino | Self::TensorRt => &[Mode::Compile],
        }
    }

    fn runs_on(&self) -> Place {
        match self {
            Self::Cpu | Self::OpenVino => Place::Processor,
            Self::Cuda | Self::TensorRt => Place::Gpu,
        }
    }

    fn find(&self, places: &Places) -> Result<Found, Missing> {
        let library = self.library(places)?;
        Ok(Found { version: library.version.clone(), library: Some(library.path.clone()) })
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Backend>, Missing> {
        let library = self.library(request.places)?;
        let &Caps { ref device, memory_bytes, ref peaks, .. } = request.device;
        let caps = Caps { device: device.clone(), memory_bytes, peaks: peaks.clone(), ..Caps::default() };
        let original = request.original.cloned();
        let engine = Sessions { provider: *self, library, caps, ordinal: request.ordinal, original };
        // What a provider needs beside the library is looked for when it is registered: here, not in the first model.
        engine.builder(Mode::Compile, request.threads).map_err(|reason| self.missing(reason))?;
        Ok(Box::new(HostBackend { engine, threads: request.threads }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_for_gpus_say_what_to_get() {
        let places = Places { named: [("onnxruntime".to_owned(), "/none".into())].into(), installed: None };
        for (provider, words) in [
            (Provider::Cuda, ["onnxruntime-gpu", "CUDA 13", "cuDNN 9"]),
            (Provider::TensorRt, ["onnxruntime-gpu", "libnvinfer.so.10", "not 11"]),
        ] {
            let said = provider.find(&places).map(|found| found.version).unwrap_err().to_string();
            assert!(said.starts_with(provider.name()), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
}
