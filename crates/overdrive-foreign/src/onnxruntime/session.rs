//! A graph as a session of ONNX Runtime, called on our buffers where they lie.
#![allow(unsafe_code)] // Values of the library are made around our bytes, and it writes its results into them.

use super::Provider;
use super::library::Library;
use super::plugin;
use crate::call::{HostEngine, Model, Prepared, unsupported};
use crate::engine::{Engine, OriginalFile};
use crate::host::HostMemory;
use crate::onnx_model::{self, OnnxModel};
use ort::ep;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::{AsPointer, ortsys, sys};
use overdrive_formats::onnx::element_code;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::{BackendError, Caps, Graph, Mode, Port, TensorType};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr;

/// Makes sessions with one provider.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) provider: Provider,
    pub(super) library: &'static Library,
    pub(super) caps: Caps,
    pub(super) ordinal: usize,
    pub(super) original: Option<OriginalFile>,
    /// The library of a provider that is no part of ONNX Runtime's.
    pub(super) plugin: Option<PathBuf>,
}

impl Sessions {
    /// The options of a session; registering the provider is part of making them.
    pub(super) fn builder(&self, mode: Mode, threads: usize) -> Result<SessionBuilder, String> {
        let level = match (self.provider, mode) {
            (Provider::OpenVino | Provider::TensorRt | Provider::TensorRtRtx, Mode::Compile) => {
                GraphOptimizationLevel::All
            }
            (Provider::OpenVino | Provider::TensorRt | Provider::TensorRtRtx, _) => {
                return Err("it compiles whole graphs and has mode `compile` only".to_owned());
            }
            (_, Mode::Eager) => GraphOptimizationLevel::Disable,
            (_, Mode::Jit) => GraphOptimizationLevel::Level1,
            (_, Mode::Compile) => GraphOptimizationLevel::All,
            (Provider::Cpu, Mode::Graph) => {
                return Err(
                    "a processor has no launches to capture and replay; use mode `compile`".to_owned()
                );
            }
            (Provider::Cuda, Mode::Graph) => {
                return Err("replaying needs inputs that stay on the GPU; use mode `compile`".to_owned());
            }
        };
        let builder = self.configure(level, threads).map_err(|e| e.to_string())?;
        self.with_provider(builder, threads)
    }

    /// What does not depend on the provider.
    fn configure(&self, level: GraphOptimizationLevel, threads: usize) -> ort::Result<SessionBuilder> {
        let mut builder = Session::builder(&self.library.environment)?
            .with_optimization_level(level)?
            .with_intra_threads(threads)?
            .with_inter_threads(1)?
            // Its threads spin within a call, as they would alone; between calls they leave the processor to others.
            .with_config_entry("session.force_spinning_stop", "1")?
            // Weights outside of the arena, so that the arena's marks are those of calls.
            .with_device_allocated_initializers()?;
        if self.provider != Provider::Cpu {
            builder = builder.with_disable_cpu_fallback()?;
        }
        Ok(builder)
    }

    /// The options with the provider in them, or what it says where it cannot start.
    fn with_provider(&self, builder: SessionBuilder, threads: usize) -> Result<SessionBuilder, String> {
        let device = i32::try_from(self.ordinal).expect("a machine has few GPUs");
        let provider = match self.provider {
            Provider::Cpu => ep::CPU::default().with_arena_allocator(true).build(),
            // Unless told otherwise it may compute f32 in bf16.
            Provider::OpenVino => ep::OpenVINO::default()
                .with_device_type("CPU")
                .with_precision("FP32")
                .with_num_threads(threads)
                .build(),
            // As everywhere here, f32 is f32.
            Provider::Cuda => ep::CUDA::default().with_device_id(device).with_tf32(false).build(),
            Provider::TensorRt => ep::TensorRT::default().with_device_id(device).build(),
            Provider::TensorRtRtx => {
                let path = self.plugin.as_ref().expect("a plug-in was located when it was opened");
                let mut devices = plugin::devices(self.library, path)?;
                if self.ordinal >= devices.len() {
                    return Err(format!(
                        "it takes {} devices, so none of number {}",
                        devices.len(),
                        self.ordinal
                    ));
                }
                let device = devices.swap_remove(self.ordinal);
                return builder.with_devices([device], None).map_err(|e| e.to_string());
            }
        };
        builder.with_execution_providers([provider.error_on_failure()]).map_err(|e| e.to_string())
    }
}

impl HostEngine for Sessions {
    fn name(&self) -> &str {
        Engine::name(&self.provider)
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn prepare(&self, graph: &Graph, mode: Mode, threads: usize) -> Result<Prepared, BackendError> {
        let name = HostEngine::name(self);
        let refused = |reason: String| unsupported(name, "session", graph.name(), reason);
        let mut builder = self.builder(mode, threads).map_err(refused)?;
        let (model, translation_ns) = onnx_model::of(name, graph, self.original.as_ref())?;
        let session = match model {
            OnnxModel::Written(bytes) => builder.commit_from_memory(&bytes),
            OnnxModel::File(file) => {
                for (dimension, &size) in &file.sizes {
                    builder = builder
                        .with_dimension_override(dimension, size as i64)
                        .map_err(|e| refused(e.to_string()))?;
                }
                builder.commit_from_file(&file.path)
            }
        };
        let session = session.map_err(|e| refused(e.to_string()))?;
        let value = |port: &Port| Placed::new(&port.name, graph.ty(port.value)).map_err(refused);
        let inputs = graph.inputs().iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let outputs = graph.outputs().iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let memory = MemoryInfo::of_host().map_err(|e| refused(e.to_string()))?;
        let arena = match self.provider {
            Provider::Cpu | Provider::OpenVino => MemoryInfo::of_host().ok(),
            Provider::Cuda | Provider::TensorRt => MemoryInfo::of_gpu(self.ordinal).ok(),
            // What it calls its memory is its own.
            Provider::TensorRtRtx => None,
        };
        let model = SessionModel { session, inputs, outputs, memory, arena, name: name.to_owned() };
        Ok(Prepared { model: Box::new(model), translation_ns })
    }
}

/// An input or an output as the library wants to be told of it.
struct Placed {
    name: CString,
    sizes: Vec<i64>,
    element: sys::ONNXTensorElementDataType,
}

impl Placed {
    fn new(name: &str, ty: &TensorType) -> Result<Self, String> {
        let code = element_code(ty.dtype).ok_or_else(|| format!("ONNX has no element type for {ty}"))?;
        Ok(Self {
            name: CString::new(name).map_err(|e| e.to_string())?,
            sizes: ty.sizes().into_iter().map(|size| size as i64).collect(),
            // SAFETY: the library numbers element types as ONNX does.
            element: unsafe { std::mem::transmute::<i32, sys::ONNXTensorElementDataType>(code) },
        })
    }

    /// A value of the library around these bytes, which it neither copies nor frees.
    fn around(&self, memory: &MemoryInfo, start: *mut u8, bytes: usize) -> ort::Result<OrtValue> {
        let mut value = ptr::null_mut();
        ortsys![unsafe CreateTensorWithDataAsOrtValue(
            memory.0, start.cast(), bytes, self.sizes.as_ptr(), self.sizes.len(), self.element, &mut value
        )?];
        Ok(OrtValue(value))
    }
}

/// A value, released with its owner.
struct OrtValue(*mut sys::OrtValue);

impl Drop for OrtValue {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseValue(self.0)];
    }
}

/// What the library calls a memory.
struct MemoryInfo(*mut sys::OrtMemoryInfo);

// SAFETY: it is never changed after it was made.
unsafe impl Send for MemoryInfo {}

impl MemoryInfo {
    fn of_host() -> ort::Result<Self> {
        let mut info = ptr::null_mut();
        let kind = sys::OrtAllocatorType::OrtArenaAllocator;
        ortsys![unsafe CreateCpuMemoryInfo(kind, sys::OrtMemType::OrtMemTypeDefault, &mut info)?];
        Ok(Self(info))
    }

    fn of_gpu(ordinal: usize) -> ort::Result<Self> {
        let mut info = ptr::null_mut();
        let device = i32::try_from(ordinal).expect("a machine has few GPUs");
        let kind = sys::OrtAllocatorType::OrtArenaAllocator;
        let default = sys::OrtMemType::OrtMemTypeDefault;
        ortsys![unsafe CreateMemoryInfo(c"Cuda".as_ptr(), kind, device, default, &mut info)?];
        Ok(Self(info))
    }
}

impl Drop for MemoryInfo {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseMemoryInfo(self.0)];
    }
}

struct SessionModel {
    session: Session,
    inputs: Vec<Placed>,
    outputs: Vec<Placed>,
    /// Where inputs and outputs are.
    memory: MemoryInfo,
    /// Where the provider works.
    arena: Option<MemoryInfo>,
    name: String,
}

impl SessionModel {
    fn run(&mut self, inputs: &[&HostMemory], outputs: &mut [&mut HostMemory]) -> ort::Result<()> {
        let given = self.inputs.iter().zip(inputs).map(|(place, memory)| {
            // The library only reads inputs.
            place.around(&self.memory, memory.bytes().as_ptr().cast_mut(), memory.bytes().len())
        });
        let given = given.collect::<ort::Result<Vec<_>>>()?;
        let taken = self.outputs.iter().zip(outputs).map(|(place, memory)| {
            let bytes = memory.bytes_mut();
            place.around(&self.memory, bytes.as_mut_ptr(), bytes.len())
        });
        let taken = taken.collect::<ort::Result<Vec<_>>>()?;
        let names = |places: &[Placed]| places.iter().map(|place| place.name.as_ptr()).collect::<Vec<_>>();
        let (input_names, output_names) = (names(&self.inputs), names(&self.outputs));
        let given_values: Vec<*const sys::OrtValue> =
            given.iter().map(|value| value.0.cast_const()).collect();
        let mut taken_values: Vec<*mut sys::OrtValue> = taken.iter().map(|value| value.0).collect();
        // SAFETY: names, values and their number belong together; the bytes behind the values are borrowed until the end.
        ortsys![unsafe Run(
            self.session.ptr().cast_mut(),
            ptr::null(),
            input_names.as_ptr(),
            given_values.as_ptr(),
            given_values.len(),
            output_names.as_ptr(),
            output_names.len(),
            taken_values.as_mut_ptr()
        )?];
        Ok(())
    }

    /// The marks of an arena that the session's calls work in.
    fn marks(&self, arena: &MemoryInfo) -> ort::Result<MemoryReport> {
        let mut allocator = ptr::null_mut();
        ortsys![unsafe CreateAllocator(self.session.ptr(), arena.0, &mut allocator)?];
        let mut pairs = ptr::null_mut();
        let asked = ortsys![@ort: unsafe AllocatorGetStats(allocator, &mut pairs) as Result];
        let statistic = |key: &CStr| -> u64 {
            let text = ortsys![unsafe GetKeyValue(pairs, key.as_ptr())];
            if text.is_null() {
                return 0;
            }
            // SAFETY: a value is text that ends in a zero and lives as long as the pairs.
            unsafe { CStr::from_ptr(text) }.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let report = asked.map(|()| {
            let (kept, peak) = (statistic(c"InUse"), statistic(c"MaxInUse"));
            MemoryReport {
                transient_bytes: peak.saturating_sub(kept),
                persistent_bytes: kept,
                ..MemoryReport::default()
            }
        });
        if !pairs.is_null() {
            ortsys![unsafe ReleaseKeyValuePairs(pairs)];
        }
        ortsys![unsafe ReleaseAllocator(allocator)];
        report
    }
}

impl Model for SessionModel {
    fn call(&mut self, inputs: &[&HostMemory], outputs: &mut [&mut HostMemory]) -> Result<(), BackendError> {
        let outcome = self.run(inputs, outputs);
        outcome.map_err(|e| BackendError::Device { step: self.name.clone(), message: e.to_string() })
    }

    fn memory(&self) -> Option<MemoryReport> {
        self.marks(self.arena.as_ref()?).ok()
    }
}
