//! tract (MIT or Apache-2.0), an inference engine written in Rust: part of this program where it is
//! built with it.
//!
//! Modes: `eager` is the model as it was read. `jit` has redundant nodes removed (tract's
//! "decluttered" form). `compile` is the optimised form that tract's documentation says to run.
//! Products run on as many threads as ours.
#![allow(unsafe_code)] // Its tensors are made from bytes.

use crate::OriginalFile;
use crate::engine::{Engine, EngineDevice, FoundEngine, Missing, OpenRequest, Places};
use crate::engine_buffer::HostMemory;
use crate::host_backend::{EngineModel, HostBackend, HostEngine, Prepared, unsupported};
use crate::onnx_model::{self, OnnxModel};
use overdrive_formats::onnx::Dialect;
use overdrive_ir::{Backend, BackendError, DType, Graph, Mode, WithoutKernels};
use std::fmt::Display;
use std::sync::Arc;
use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::{
    DatumType, Framework, InferenceFact, InferenceModelExt, IntoTValue, RunOptions, TValue, TVec,
    Tensor, TractResult, TypedRunnableModel, TypedSimplePlan,
};

/// tract.
#[derive(Debug)]
pub(crate) struct Tract;

/// Its version, which the manifest of the workspace pins.
const VERSION: &str = "0.23";

impl Engine for Tract {
    fn name(&self) -> &'static str {
        "tract"
    }

    fn about(&self) -> &'static str {
        "inference engine in Rust"
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Eager, Mode::Jit, Mode::Compile]
    }

    fn runs_on(&self) -> EngineDevice {
        EngineDevice::Processor
    }

    fn find(&self, _: &Places) -> Result<FoundEngine, Missing> {
        Ok(FoundEngine { version: VERSION.to_owned(), library: None })
    }

    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Backend>, Missing> {
        let engine = Models { target: request.target(), original: request.original.cloned() };
        Ok(Box::new(HostBackend { engine, threads: request.threads }))
    }
}

/// Makes models of graphs.
struct Models {
    target: WithoutKernels,
    original: Option<OriginalFile>,
}

impl HostEngine for Models {
    fn name(&self) -> &str {
        Engine::name(&Tract)
    }

    fn target(&self) -> &WithoutKernels {
        &self.target
    }

    fn prepare(&self, graph: &Graph, mode: Mode, threads: usize) -> Result<Prepared, BackendError> {
        let refused = |reason: &dyn Display| unsupported("tract", "model", graph.name(), reason);
        if mode == Mode::Graph {
            return Err(refused(
                &"a processor has no launches to capture and replay; use mode `compile`",
            ));
        }
        let reads = ("tract", Dialect::Microsoft);
        let (handed, translation_ns) = onnx_model::of(reads, graph, self.original.as_ref())?;
        let inputs = graph.inputs().iter().map(|port| {
            let ty = graph.ty(port.value);
            let datum = datum(ty.dtype)
                .ok_or_else(|| refused(&format!("tract has no element type for {ty}")))?;
            Ok((datum, ty.sizes()))
        });
        let inputs = inputs.collect::<Result<Vec<_>, BackendError>>()?;
        let plan = plan(&handed, &inputs, mode, threads).map_err(|e| refused(&format!("{e:#}")))?;
        Ok(Prepared { model: Box::new(TractModel { plan, inputs }), translation_ns })
    }
}

type Input = (DatumType, Vec<usize>);

fn plan(
    handed: &OnnxModel<'_>,
    inputs: &[Input],
    mode: Mode,
    threads: usize,
) -> TractResult<Arc<TypedRunnableModel>> {
    // Types of intermediate values in a file name dimensions that have sizes here.
    let onnx = tract_onnx::onnx().with_ignore_value_info(true).with_ignore_output_shapes(true);
    let mut model = match handed {
        OnnxModel::File(file) => onnx.model_for_path(&file.path)?,
        OnnxModel::Written(bytes) => onnx.model_for_read(&mut bytes.as_slice())?,
    };
    for (i, (datum, sizes)) in inputs.iter().enumerate() {
        model.set_input_fact(i, InferenceFact::dt_shape(*datum, sizes))?;
    }
    let model = match mode {
        Mode::Eager => model.into_typed()?,
        Mode::Jit => model.into_typed()?.into_decluttered()?,
        Mode::Compile | Mode::Graph => model.into_optimized()?,
    };
    let executor =
        if threads > 1 { Executor::multithread(threads) } else { Executor::SingleThread };
    let options = RunOptions { executor: Some(executor), ..RunOptions::default() };
    TypedSimplePlan::new_with_options(model, &options)
}

/// Its type for ours.
fn datum(dtype: DType) -> Option<DatumType> {
    Some(match dtype {
        DType::F64 => DatumType::F64,
        DType::F32 => DatumType::F32,
        DType::F16 => DatumType::F16,
        DType::I64 => DatumType::I64,
        DType::I32 => DatumType::I32,
        DType::I16 => DatumType::I16,
        DType::I8 => DatumType::I8,
        DType::U64 => DatumType::U64,
        DType::U32 => DatumType::U32,
        DType::U16 => DatumType::U16,
        DType::U8 => DatumType::U8,
        DType::Bool => DatumType::Bool,
        _ => return None,
    })
}

struct TractModel {
    plan: Arc<TypedRunnableModel>,
    inputs: Vec<Input>,
}

impl TractModel {
    fn run(&self, inputs: &[&HostMemory]) -> TractResult<TVec<TValue>> {
        let value = |((datum, sizes), memory): (&Input, &&HostMemory)| -> TractResult<TValue> {
            // SAFETY: every pattern of bytes that our tensors hold is a value of the type.
            Ok(unsafe { Tensor::from_raw_dt(*datum, sizes, memory.bytes()) }?.into_tvalue())
        };
        self.plan.run(self.inputs.iter().zip(inputs).map(value).collect::<TractResult<_>>()?)
    }
}

impl EngineModel for TractModel {
    fn call(
        &mut self,
        inputs: &[&HostMemory],
        outputs: &mut [&mut HostMemory],
    ) -> Result<(), BackendError> {
        let failed = |message: String| BackendError::Device { step: "tract".to_owned(), message };
        let values = self.run(inputs).map_err(|e| failed(format!("{e:#}")))?;
        for (i, (memory, value)) in outputs.iter_mut().zip(&values).enumerate() {
            let (bytes, found) = (memory.bytes_mut(), value.as_bytes());
            if bytes.len() != found.len() {
                return Err(failed(format!(
                    "output {i}: expected {} bytes, found {}",
                    bytes.len(),
                    found.len()
                )));
            }
            bytes.copy_from_slice(found);
        }
        Ok(())
    }
}
