//! A compiled graph with its buffers, run on random inputs and compared with the reference
//! evaluator.

use std::sync::atomic::{AtomicUsize, Ordering};

use overdrive_cpu::{CpuBackend, InstructionSet};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::{
    Array, Backend, BackendError, Buffer, Builder, DType, Expr, Graph, Mode, State, Tensor, Tuning,
};
use testkit::{Tolerance, compare};

/// The modes that a CPU has.
pub(crate) const MODES: [Mode; 3] = [Mode::Eager, Mode::Jit, Mode::Compile];

/// Random values that `dtype` can hold exactly enough to compare.
pub(crate) fn random(dtype: DType, shape: &[usize], seed: u64) -> Array {
    let count = shape.iter().product();
    let values: Vec<f64> = match dtype {
        DType::Bool => {
            philox::uniforms(seed, 0).take(count).map(|u| (u < 0.5) as u8 as f64).collect()
        }
        _ if dtype.is_float() => philox::normals(seed, 0).take(count).collect(),
        _ => philox::uniforms(seed, 0).take(count).map(|u| (u * 7.0).floor()).collect(),
    };
    Array::from(&Array::from_f64(dtype, shape, values).to_tensor())
}

/// The tolerance of results that are not rounded.
pub(crate) const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// A graph whose inputs have the types of `inputs`.
pub(crate) fn graph(
    name: &str,
    inputs: &[Array],
    f: impl for<'b> Fn(&'b Builder, &[Expr<'b>]) -> Vec<Expr<'b>>,
) -> Graph {
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
    let results = f(&b, &args);
    results.iter().enumerate().for_each(|(i, result)| b.output(&format!("y{i}"), *result));
    b.finish().expect("the test's graph is well typed")
}

/// A compiled graph with its buffers.
pub(crate) struct Session {
    pub(crate) backend: CpuBackend,
    pub(crate) compiled: Box<dyn overdrive_ir::Session>,
    pub(crate) state: State,
    pub(crate) inputs: Vec<Buffer>,
    pub(crate) outputs: Vec<Buffer>,
}

impl Session {
    pub(crate) fn new(
        graph: &Graph,
        mode: Mode,
        threads: usize,
        inputs: &[Tensor],
    ) -> Result<Self, BackendError> {
        Self::on(CpuBackend::new(Some(threads))?, graph, mode, inputs)
    }

    fn on(
        backend: CpuBackend,
        graph: &Graph,
        mode: Mode,
        inputs: &[Tensor],
    ) -> Result<Self, BackendError> {
        let compiled = backend.compile(graph, mode, &Tuning::default())?.session()?;
        let state = State::initial(graph, &backend)?;
        let inputs = inputs.iter().map(|t| backend.upload(t)).collect::<Result<_, _>>()?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let outputs = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
        Ok(Self { backend, compiled, state, inputs, outputs })
    }

    pub(crate) fn run(&mut self) -> Result<(), BackendError> {
        self.compiled.run(self.state.with(&self.inputs, &mut self.outputs))?.wait()
    }

    pub(crate) fn outputs(&self) -> Vec<Array> {
        let download = |buffer| Array::from(&self.backend.download(buffer).unwrap());
        self.outputs.iter().map(download).collect()
    }

    pub(crate) fn state(&self, name: &str) -> Array {
        Array::from(&self.backend.download(&self.state.buffers[name]).unwrap())
    }
}

/// Instruction sets of this machine below the best.
fn lower_sets() -> Vec<InstructionSet> {
    InstructionSet::available().filter(|&set| set != InstructionSet::best()).collect()
}

/// Panics with the first output or state that differs from the reference, under every instruction
/// set. The best set runs in every mode on one and two threads, each lower one in one mode.
pub(crate) fn check(graph: &Graph, inputs: &[Array], tolerance: Tolerance) {
    agrees_under(&lower_sets(), graph, inputs, tolerance).unwrap_or_else(|error| panic!("{error}"));
}

/// The same for one of many cases: errs, and takes one of the lower sets, each in its turn.
pub(crate) fn agrees(graph: &Graph, inputs: &[Array], tolerance: Tolerance) -> Result<(), String> {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let lower = lower_sets();
    let turn = TURN.fetch_add(1, Ordering::Relaxed).checked_rem(lower.len());
    let lower = turn.map_or(&[][..], |turn| &lower[turn..=turn]);
    agrees_under(lower, graph, inputs, tolerance)
}

/// Two calls each, the second on the states that the first left.
fn agrees_under(
    lower: &[InstructionSet],
    graph: &Graph,
    inputs: &[Array],
    tolerance: Tolerance,
) -> Result<(), String> {
    let mut states = States::new();
    let tensors: Vec<Tensor> = inputs.iter().map(Array::to_tensor).collect();
    // The device gets values that are rounded to the declared types.
    let rounded: Vec<Array> = tensors.iter().map(Array::from).collect();
    let mut call = || {
        let outputs = eval(graph, &rounded, &mut states);
        (outputs, states.clone())
    };
    let expected: [(Vec<Array>, States); 2] = [call(), call()];
    let best = InstructionSet::best();
    let all = MODES.into_iter().flat_map(|mode| [(mode, 1, best), (mode, 2, best)]);
    for (mode, threads, set) in all.chain(lower.iter().map(|&set| (Mode::Compile, 2, set))) {
        let at = format!("`{}`, {mode}, {threads} threads, {set}", graph.name());
        let session = CpuBackend::with_instruction_set(Some(threads), set)
            .and_then(|backend| Session::on(backend, graph, mode, &tensors));
        let mut session = session.map_err(|e| format!("{at}: {e}"))?;
        for (call, (outputs, states)) in expected.iter().enumerate() {
            session.run().map_err(|e| format!("{at}: {e}"))?;
            for (port, (expected, found)) in
                graph.outputs().iter().zip(outputs.iter().zip(session.outputs()))
            {
                let plan = session.compiled.plan();
                compare(expected, &found, tolerance).map_err(|e| {
                    format!("{at}, call {call}, output `{}`: {e}\n{:#?}", port.name, plan.steps)
                })?;
            }
            for (name, expected) in states {
                compare(expected, &session.state(name), tolerance)
                    .map_err(|e| format!("{at}, call {call}, state `{name}`: {e}"))?;
            }
        }
        for (buffer, tensor) in session.inputs.iter().zip(&tensors) {
            assert_eq!(
                session.backend.download(buffer).unwrap(),
                *tensor,
                "{at}: an input changed"
            );
        }
    }
    Ok(())
}
