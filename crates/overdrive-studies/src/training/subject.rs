//! A step as something to be timed, what judges it, and its resources.

use super::step::{Model, Way};
use crate::referee::Referee;
use crate::{Context, Workload};
use overdrive_bench::clock::Clock;
use overdrive_bench::deviation::{Deviation, Tolerance};
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::{Measurement, Overhead};
use overdrive_bench::memory::peak_during;
use overdrive_bench::subject::{Reading, Subject};
use overdrive_ir::plan::Space;
use overdrive_ir::{
    Backend, Buffer, Executable, Graph, Mode, Plan, Session, State, Tensor, Tuning,
};
use overdrive_passes::draw;
use overdrive_train::drawn_as;
use std::ops::Range;
use std::sync::Arc;

/// Updates that f16 may skip before the scale of its loss fits.
const MOST_SKIPPED: usize = 20;
/// Up to so many FLOPs a definition is evaluated in f64 on the host: some ten seconds. That of a
/// larger model is evaluated in f32 on the device.
const F64_FLOPS: u64 = 2_000_000_000_000;

/// A step that is compiled.
pub(super) struct Ready {
    pub(super) graph: Graph,
    pub(super) executable: Arc<dyn Executable>,
    paid: Overhead,
    limit: Option<u64>,
}

/// Compiles a step, which may take so many bytes.
///
/// # Errors
/// When it cannot be made, or the device has no plan for it.
pub(super) fn ready(
    context: &Context<'_>,
    model: Model,
    way: &Way,
    limit: Option<u64>,
) -> Result<Ready, Failure> {
    let (graph, backend) = (model.step(way)?, context.device().backend);
    let known = context.tuning.borrow().clone();
    let threads = Some(context.device().threads as usize);
    let blocking_copies = way.blocks;
    let tuning = Tuning { threads, memory_limit: limit, blocking_copies, ..known };
    let start = context.sampling.clock.now_ns();
    let executable = backend.compile(&graph, backend.description().fastest_mode(), &tuning)?;
    let compile_ns = Some(context.sampling.clock.now_ns() - start);
    let paid = Overhead { compile_ns, ..Overhead::default() };
    Ok(Ready { graph, executable, paid, limit })
}

/// A sample, with its loss and norm by their definition.
#[derive(Clone)]
pub(super) struct Judge {
    pub(super) sample: Vec<Tensor>,
    expected: Vec<f64>,
    reference: &'static str,
}

/// The judge of a workload.
///
/// # Errors
/// When nobody can evaluate the definition.
pub(super) fn judge(context: &Context<'_>, workload: &Workload) -> Result<Judge, Failure> {
    let seed = context.sampling.seed;
    if workload.graph.cost().flops <= F64_FLOPS {
        let oracle = workload.judged_by(Referee::host(context.reference));
        let expected = oracle.expected(seed)?.iter().flatten().copied().collect();
        let reference = "loss and norm of gradients in f64";
        return Ok(Judge { sample: oracle.inputs(seed), expected, reference });
    }
    let (graph, backend) = (&workload.graph, context.device().backend);
    let executable = backend.compile(graph, Mode::Compile, &Tuning::default())?;
    let (mut session, mut state) = (executable.session()?, State::initial(graph, backend)?);
    let sample = workload.inputs(seed);
    let inputs = sample.iter().map(|x| backend.upload(x)).collect::<Result<Vec<_>, _>>()?;
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    session.run(state.with(&inputs, &mut outputs))?.wait()?;
    let mut expected = Vec::new();
    for output in &outputs {
        expected.extend(backend.download(output)?.to_f64());
    }
    Ok(Judge { sample, expected, reference: "loss and norm of gradients in f32" })
}

/// Steps one after another. Fields are dropped in this order, the session before what it runs on.
pub(super) struct Steps<'a> {
    session: Box<dyn Session>,
    state: State,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    backend: &'a dyn Backend,
    /// The judge of the first, and how far it may be off.
    judge: (Judge, f64),
}

impl<'a> Steps<'a> {
    pub(super) fn new(
        backend: &'a dyn Backend,
        Ready { graph, executable, .. }: &Ready,
        inputs: &[Tensor],
        judge: (Judge, f64),
    ) -> Result<Self, Failure> {
        let session = Arc::clone(executable).session()?;
        let state = initial(backend, graph, session.plan())?;
        let inputs = inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let outputs = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
        Ok(Self { session, state, inputs, outputs, backend, judge })
    }

    fn calls(&mut self, count: u64) -> Result<(), Failure> {
        let Self { session, state, inputs, outputs, .. } = self;
        let mut under_way = Vec::with_capacity(count as usize);
        for _ in 0..count {
            under_way.push(session.run(state.with(inputs, outputs))?);
        }
        under_way.into_iter().try_for_each(|call| Ok(call.wait()?))
    }

    /// Loss, norm, and whether the step changed the states.
    fn outcome(&self) -> Result<[f64; 3], Failure> {
        let number = |at: usize| -> Result<f64, Failure> {
            Ok(self.backend.download(&self.outputs[at])?.to_f64()[0])
        };
        Ok([number(0)?, number(1)?, number(2)?])
    }
}

/// States at their initial values, each in the memory that the plan keeps it in.
fn initial(backend: &dyn Backend, graph: &Graph, plan: &Plan) -> Result<State, Failure> {
    let mut state = State::default();
    for declared in graph.states() {
        let (name, ty) = (&declared.name, graph.ty(declared.value));
        let known = drawn_as(name);
        let buffer = match plan.offloaded.get(name) {
            None => backend.initial(&declared.init, known, ty)?,
            Some(&space) => backend.upload_to(&draw(&declared.init, known, ty), space)?,
        };
        state.buffers.insert(name.clone(), buffer);
    }
    Ok(state)
}

impl Subject for Steps<'_> {
    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        self.calls(1)
    }

    fn sample(&mut self, calls: Range<u64>, clock: &dyn Clock) -> Result<Reading, Failure> {
        let start = clock.now_ns();
        self.calls(calls.end - calls.start)?;
        Ok(Reading::host(clock.now_ns() - start))
    }

    /// One call was made by now. If it overflowed, the states are still what they were.
    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        let mut found = self.outcome()?;
        for _ in 0..MOST_SKIPPED {
            if found[2] == 1.0 {
                break;
            }
            self.calls(1)?;
            found = self.outcome()?;
        }
        let (Judge { expected, .. }, rtol) = &self.judge;
        Deviation::between(&found[..2], expected, Tolerance::of_elements(*rtol, 0.0)).map(Some)
    }

    /// The last step was finite, and changed the states.
    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        let [.., applied] = self.outcome()?;
        Deviation::between(&[applied], &[1.0], Tolerance::of_elements(0.0, 0.0)).map(Some)
    }

    fn reference(&self) -> &str {
        self.judge.0.reference
    }
}

/// Adds what one more step takes besides time.
pub(super) fn resources(
    context: &Context<'_>,
    steps: &mut Steps<'_>,
    ready: &Ready,
    measurement: &mut Measurement,
) {
    measurement.overhead =
        Overhead { first_call_ns: measurement.overhead.first_call_ns, ..ready.paid.clone() };
    // Quantities that cannot be measured are absent; the case ran all the same.
    let (ran, mut memory) = peak_during(context.probes.heap, || steps.calls(1));
    let (plan, report) = (ready.executable.plan(), steps.session.memory());
    memory.planned_arena_bytes = Some(report.transient_bytes);
    let is_device = context.device().is_accelerator();
    let memory = if is_device { memory.with_device(&report) } else { memory };
    measurement.memory = ran.is_ok().then_some(memory);
    let again = plan.notes.iter().filter(|note| note.is_recomputed_for_memory()).count();
    let quantities = [
        (PLANNED_BYTES, Some(plan.peak_bytes(Space::MAIN))),
        ("state_bytes", Some(report.state_bytes + report.offloaded_bytes)),
        ("memory_limit_bytes", ready.limit),
        ("offloaded_bytes", ready.limit.map(|_| report.offloaded_bytes)),
        ("values_computed_again", ready.limit.map(|_| again as u64)),
    ];
    let known = quantities.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    measurement.quantities.extend(known.map(|(name, value)| (name, value as f64)));
    let device = &context.device().backend.description().device;
    let probe = context.probes.energy.and_then(|probes| probes.get(device));
    if let Some(probe) = probe.filter(|_| !context.sampling.is_quick()) {
        let call = || steps.calls(1);
        measurement.energy = probe.borrow_mut().of_calls(context.sampling.clock, call).ok();
    }
}

/// Quantity with the bytes of the device that a step takes by its plan.
const PLANNED_BYTES: &str = "planned_bytes";
