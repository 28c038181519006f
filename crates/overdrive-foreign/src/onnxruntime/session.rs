//! A graph as a session of ONNX Runtime, called on our buffers where they lie: on the host, or on
//! the device of its provider.
//!
//! Invariant: a call copies nothing that its provider did not ask for, since inputs and outputs are
//! in its memory before.
// Values of the library are made around our bytes, and it writes its results into them.
#![allow(unsafe_code)]

use super::library::Library;
use super::plugin;
use super::provider::Provider;
use super::values::{BoundValue, MemoryInfo, RunOptions};
use crate::device::DeviceAllocator;
use crate::engine::{Engine, OriginalFile};
use crate::engine_buffer::HostMemory;
use crate::host_backend::{EngineModel, HostEngine, Prepared, unsupported};
use crate::onnx_model::{self, OnnxModel};
use ort::ep;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::{AsPointer, ortsys, sys};
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::{BackendError, Graph, Mode, Port, WithoutKernels};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

/// Makes sessions with one provider.
pub(super) struct Sessions {
    pub(super) provider: Provider,
    pub(super) library: &'static Library,
    pub(super) target: WithoutKernels,
    pub(super) ordinal: usize,
    pub(super) original: Option<OriginalFile>,
    /// The library of a provider that is no part of ONNX Runtime's.
    pub(super) plugin: Option<PathBuf>,
    /// The allocator of inputs and outputs, if they are not on the host.
    pub(super) device: Option<Arc<dyn DeviceAllocator>>,
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
            (_, Mode::Compile) | (Provider::Cuda, Mode::Graph) => GraphOptimizationLevel::All,
            (Provider::Cpu, Mode::Graph) => {
                return Err(
                    "a processor has no launches to capture and replay; use mode `compile`"
                        .to_owned(),
                );
            }
        };
        let builder = self.configure(level, threads).map_err(|e| e.to_string())?;
        self.with_provider(builder, mode, threads)
    }

    /// Settings that do not depend on the provider.
    fn configure(
        &self,
        level: GraphOptimizationLevel,
        threads: usize,
    ) -> ort::Result<SessionBuilder> {
        let mut builder = Session::builder(&self.library.environment)?
            .with_optimization_level(level)?
            .with_intra_threads(threads)?
            .with_inter_threads(1)?
            // Its threads spin within a call, as they would alone; between calls they leave the
            // processor to others.
            .with_config_entry("session.force_spinning_stop", "1")?
            // Weights outside of the arena, so that the arena's marks are those of calls.
            .with_device_allocated_initializers()?;
        if self.provider != Provider::Cpu {
            builder = builder.with_disable_cpu_fallback()?;
        }
        Ok(builder)
    }

    /// The options with the provider added, or its error if it cannot start.
    fn with_provider(
        &self,
        builder: SessionBuilder,
        mode: Mode,
        threads: usize,
    ) -> Result<SessionBuilder, String> {
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
            Provider::Cuda => {
                let cuda = ep::CUDA::default().with_device_id(device).with_tf32(false);
                cuda.with_cuda_graph(mode == Mode::Graph).build()
            }
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

    fn target(&self) -> &WithoutKernels {
        &self.target
    }

    fn prepare(&self, graph: &Graph, mode: Mode, threads: usize) -> Result<Prepared, BackendError> {
        let name = HostEngine::name(self);
        let refused = |reason: String| unsupported(name, "session", graph.name(), reason);
        let mut builder = self.builder(mode, threads).map_err(refused)?;
        let reads = (name, self.provider.dialect());
        let (model, translation_ns) = onnx_model::of(reads, graph, self.original.as_ref())?;
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
        let value =
            |port: &Port| BoundValue::new(&port.name, graph.ty(port.value)).map_err(refused);
        let inputs = graph.inputs().iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let outputs = graph.outputs().iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let memory = match self.provider {
            Provider::Cpu | Provider::OpenVino => MemoryInfo::of_host(),
            Provider::Cuda | Provider::TensorRt | Provider::TensorRtRtx => {
                MemoryInfo::of_gpu(self.ordinal)
            }
        };
        let memory = memory.map_err(|e| refused(e.to_string()))?;
        let arena = match self.provider {
            Provider::Cpu | Provider::OpenVino => MemoryInfo::of_host().ok(),
            Provider::Cuda | Provider::TensorRt => MemoryInfo::of_gpu(self.ordinal).ok(),
            // It has its own name for its memory.
            Provider::TensorRtRtx => None,
        };
        let captures = (mode == Mode::Graph).then(HashMap::new);
        let (device, name) = (self.device.clone(), name.to_owned());
        let model =
            SessionModel { session, inputs, outputs, memory, device, captures, arena, name };
        Ok(Prepared { model: Box::new(model), translation_ns })
    }
}

struct SessionModel {
    session: Session,
    inputs: Vec<BoundValue>,
    outputs: Vec<BoundValue>,
    /// The library's name of the memory that inputs and outputs are in.
    memory: MemoryInfo,
    /// The device whose memory it is, if not the host.
    device: Option<Arc<dyn DeviceAllocator>>,
    /// Options that calls are captured under, by the addresses of their inputs and outputs. A
    /// captured graph always uses these addresses. None where calls are not captured.
    captures: Option<HashMap<Vec<usize>, RunOptions>>,
    /// The memory that the provider works in.
    arena: Option<MemoryInfo>,
    name: String,
}

impl SessionModel {
    /// Addresses of inputs and outputs, in this order.
    fn addresses(
        &self,
        inputs: &[&HostMemory],
        outputs: &mut [&mut HostMemory],
    ) -> Result<Vec<*mut u8>, BackendError> {
        let given = inputs.iter().map(|memory| match &self.device {
            Some(device) => memory.on(device.as_ref()),
            // The library only reads inputs.
            None => Ok(memory.bytes().as_ptr().cast_mut()),
        });
        let taken = outputs.iter_mut().map(|memory| match &self.device {
            Some(device) => memory.on_mut(device.as_ref()),
            None => Ok(memory.bytes_mut().as_mut_ptr()),
        });
        given.chain(taken).collect()
    }

    /// One call on memory that is borrowed until its end, at `addresses` and with so many bytes
    /// each.
    fn run(&mut self, addresses: &[*mut u8], bytes: &[usize]) -> ort::Result<()> {
        let places = self.inputs.iter().chain(&self.outputs);
        let values = places.zip(addresses).zip(bytes);
        let values =
            values.map(|((place, &start), &bytes)| place.around(&self.memory, start, bytes));
        let values = values.collect::<ort::Result<Vec<_>>>()?;
        let (given, taken) = values.split_at(self.inputs.len());
        let options = match &mut self.captures {
            None => ptr::null(),
            Some(captures) => {
                // The library keeps zero for calls without a number.
                let number = captures.len() + 1;
                match captures.entry(addresses.iter().map(|address| address.addr()).collect()) {
                    Entry::Occupied(known) => known.get().0.cast_const(),
                    Entry::Vacant(new) => {
                        new.insert(RunOptions::of_capture(number)?).0.cast_const()
                    }
                }
            }
        };
        let names = |places: &[BoundValue]| {
            places.iter().map(|place| place.name.as_ptr()).collect::<Vec<_>>()
        };
        let (input_names, output_names) = (names(&self.inputs), names(&self.outputs));
        let given_values: Vec<*const sys::OrtValue> =
            given.iter().map(|value| value.0.cast_const()).collect();
        let mut taken_values: Vec<*mut sys::OrtValue> = taken.iter().map(|value| value.0).collect();
        // SAFETY: names, values and their number belong together; the bytes behind the values are
        // borrowed until the end.
        ortsys![unsafe Run(
            self.session.ptr().cast_mut(),
            options,
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
            unsafe { CStr::from_ptr(text) }
                .to_str()
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0)
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

impl EngineModel for SessionModel {
    fn call(
        &mut self,
        inputs: &[&HostMemory],
        outputs: &mut [&mut HostMemory],
    ) -> Result<(), BackendError> {
        let addresses = self.addresses(inputs, outputs)?;
        let outputs = outputs.iter().map(|memory| memory.len());
        let bytes: Vec<usize> = inputs.iter().map(|memory| memory.len()).chain(outputs).collect();
        let outcome = self.run(&addresses, &bytes);
        outcome
            .map_err(|e| BackendError::Device { step: self.name.clone(), message: e.to_string() })
    }

    fn memory(&self) -> Option<MemoryReport> {
        self.marks(self.arena.as_ref()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Beside;
    use crate::engine::Places;
    use crate::engine_buffer;
    use overdrive_ir::{Builder, DType, Tensor, TensorType};
    use testkit::Needs;

    #[test]
    fn calls_find_their_inputs_on_the_device_and_leave_their_outputs_there() {
        let library = match Library::load(&Places::default()) {
            Ok(library) => library,
            Err(reason) => return testkit::skip(Needs::Engine("onnxruntime"), reason),
        };
        let device = Beside::default();
        let sessions = Sessions {
            provider: Provider::Cpu,
            library,
            target: WithoutKernels::default(),
            ordinal: 0,
            original: None,
            plugin: None,
            device: Some(Arc::new(device.clone())),
        };
        let b = Builder::new("sum");
        let ty = TensorType::new(DType::F32, [4usize]);
        b.output("y", b.input("x", ty.clone()) + b.input("z", ty.clone()));
        let mut model = sessions.prepare(&b.finish().unwrap(), Mode::Compile, 1).unwrap().model;
        let [x, z] = [[1.0, 2.0, 3.0, 4.0], [0.5; 4]]
            .map(|v| engine_buffer::upload(&Tensor::from_f32([4], &v)));
        let (mut x, mut y) = (x, engine_buffer::output(&ty));
        let mut call = |x: &_, y: &mut _| {
            let (x, z) = (engine_buffer::of(x).unwrap(), engine_buffer::of(&z).unwrap());
            model.call(&[x, z], &mut [engine_buffer::of_mut(y).unwrap()]).unwrap();
        };
        call(&x, &mut y);
        // Two inputs, and an output that nobody has written yet.
        assert_eq!(device.copies(), [48, 0]);
        assert_eq!(engine_buffer::download(&y).unwrap().to_f64(), [1.5, 2.5, 3.5, 4.5]);
        engine_buffer::write(&mut x, &Tensor::from_f32([4], &[2.0; 4])).unwrap();
        let before = device.copies();
        assert_eq!(before, [64, 16]);
        call(&x, &mut y);
        call(&x, &mut y);
        assert_eq!(device.copies(), before);
        assert_eq!(engine_buffer::download(&y).unwrap().to_f64(), [2.5; 4]);
    }
}
