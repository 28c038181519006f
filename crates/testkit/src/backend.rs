//! A back end against the f64 definition.
//!
//! Invariants:
//! - Outputs start as NaN (integers as -1), so that a missing write is seen.
//! - Inputs must come back bit for bit.
//! - A graph without states must give the same bits twice, as the design promises.

use crate::tolerance::magnitude;
use crate::{Tolerance, compare};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{
    Array, Backend, BackendError, Buffer, Builder, Graph, Mode, State, Tensor, TensorType, Tuning,
};

/// Why a back end did not pass.
#[derive(Debug)]
pub enum Disagreement {
    /// It would not compile or run the graph, and said so.
    Refused(BackendError),
    /// It ran, and this is wrong.
    Wrong(String),
}

impl From<BackendError> for Disagreement {
    fn from(error: BackendError) -> Self {
        Disagreement::Refused(error)
    }
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Disagreement::Refused(error) => write!(f, "refused: {error}"),
            Disagreement::Wrong(what) => f.write_str(what),
        }
    }
}

/// Runs a bound graph on a back end and errs where outputs, updated states or inputs are not what
/// they should be. `inputs` hold values of their own types, as `Case::inputs` gives them.
pub fn check_backend(
    backend: &dyn Backend,
    mode: Mode,
    graph: &Graph,
    inputs: &[Array],
) -> Result<(), Disagreement> {
    let place = format!("`{}` on {} in mode {mode}", graph.name(), backend.name());
    let wrong = |what: String| Disagreement::Wrong(format!("{place}: {what}"));
    let mut states = States::new();
    let expected = eval(graph, inputs, &mut states);

    let mut session = backend.compile(graph, mode, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, backend)?;
    let tensors: Vec<Tensor> = inputs.iter().map(Array::to_tensor).collect();
    let uploaded = tensors.iter().map(|t| backend.upload(t)).collect::<Result<Vec<Buffer>, _>>()?;
    let types = graph.types(&graph.outputs().iter().map(|port| port.value).collect::<Vec<_>>());
    let mut run = |state: &mut State| -> Result<Vec<Tensor>, BackendError> {
        let mut outputs =
            types.iter().map(|ty| poisoned(backend, ty)).collect::<Result<Vec<_>, _>>()?;
        session.run(state.with(&uploaded, &mut outputs))?.wait()?;
        outputs.iter().map(|output| backend.download(output)).collect()
    };
    let found = run(&mut state)?;

    let scale = magnitude(&everything(graph, inputs)?);
    let length = graph.values().map(|v| graph.ty(v).elements()).max().unwrap_or(1);
    let check = |name: &str, expected: &Array, found: &Tensor| {
        let (rounded, tolerance) =
            (Array::from(&expected.to_tensor()), Tolerance::new(expected.dtype, length, scale));
        compare(&rounded, &Array::from(found), tolerance)
            .map_err(|e| wrong(format!("`{name}`: {e}")))
    };
    for ((port, expected), found) in graph.outputs().iter().zip(&expected).zip(&found) {
        check(&port.name, expected, found)?;
    }
    for declared in graph.states().iter().filter(|declared| declared.update.is_some()) {
        let buffer = state.buffers.get(&declared.name);
        let buffer = buffer.ok_or_else(|| wrong(format!("state `{}` is gone", declared.name)))?;
        check(&declared.name, &states[&declared.name], &backend.download(buffer)?)?;
    }
    for ((port, before), buffer) in graph.inputs().iter().zip(&tensors).zip(&uploaded) {
        if backend.download(buffer)?.bytes() != before.bytes() {
            return Err(wrong(format!("input `{}` was overwritten", port.name)));
        }
    }
    if graph.states().is_empty() {
        let again = run(&mut state)?;
        if again.iter().zip(&found).any(|(again, found)| again.bytes() != found.bytes()) {
            return Err(wrong("a second call gives other bits".into()));
        }
    }
    Ok(())
}

/// Every value of the graph: what is large inside and cancels before it comes out still leaves its
/// rounding errors.
fn everything(graph: &Graph, inputs: &[Array]) -> Result<Vec<Array>, Disagreement> {
    let b = Builder::new(graph.name());
    let all = b.append(graph).map_err(|e| Disagreement::Wrong(e.to_string()))?;
    all.iter().enumerate().for_each(|(i, value)| b.output(&i.to_string(), *value));
    let whole = b.finish().map_err(|e| Disagreement::Wrong(e.to_string()))?;
    Ok(eval(&whole, inputs, &mut States::new()))
}

/// An output buffer of NaN, or of -1 (all ones) for integers.
fn poisoned(backend: &dyn Backend, ty: &TensorType) -> Result<Buffer, BackendError> {
    let (count, shape) = (ty.elements(), ty.shape.clone());
    let poison = if ty.dtype.is_float() {
        Tensor::from_f64(ty.dtype, shape, &vec![f64::NAN; count])
    } else {
        Tensor::from_ints(ty.dtype, shape, &vec![-1; count])
    };
    let mut buffer = backend.output(ty)?;
    backend.write(&mut buffer, &poison)?;
    Ok(buffer)
}
