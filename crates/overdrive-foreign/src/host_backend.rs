//! `HostBackend`: an engine that is handed memory of the host, or memory that it puts on its device
//! itself, as a back end. All that an engine's file adds is how it makes a graph ready and how it
//! is called.
//!
//! Weights are constants to such engines, since all of them pack and fold what they know.
//! Invariant: a state that is not what the graph was compiled with is an error, never a result of
//! the old weights.

use crate::engine_buffer::{self, HostMemory};
use overdrive_ir::backend::{
    Heap, MemoryReport, Pending, Protocol, Ready, StepProfile, TimedSample,
};
use overdrive_ir::plan::{Layout, Slot, SlotPlace};
use overdrive_ir::{
    Arguments, Backend, BackendError, Buffer, Executable, Graph, Init, Mode, Plan, Session, SlotId,
    State, Target, Tensor, TensorType, Tuning, WithoutKernels,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An engine that works on host memory.
pub(crate) trait HostEngine: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// The target that it runs on.
    fn target(&self) -> &WithoutKernels;
    /// Makes a graph ready, on so many threads; every state is `Init::Value`.
    fn prepare(&self, graph: &Graph, mode: Mode, threads: usize) -> Result<Prepared, BackendError>;
}

/// A graph that is ready.
pub(crate) struct Prepared {
    /// The model that is called.
    pub(crate) model: Box<dyn EngineModel>,
    /// Time that writing the graph down for the engine took.
    pub(crate) translation_ns: u64,
}

/// A model inside an engine.
pub(crate) trait EngineModel: Send {
    /// One call: inputs and outputs are dense and row-major, in the order of the graph.
    fn call(
        &mut self,
        inputs: &[&HostMemory],
        outputs: &mut [&mut HostMemory],
    ) -> Result<(), BackendError>;
    /// Figures of the engine's own allocator, if it has one.
    fn memory(&self) -> Option<MemoryReport> {
        None
    }
}

/// An engine as a back end.
pub(crate) struct HostBackend<E> {
    /// The engine.
    pub(crate) engine: E,
    /// Threads that it may use unless a tuning says otherwise.
    pub(crate) threads: usize,
}

impl<E: HostEngine> Backend for HostBackend<E> {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn target(&self) -> &dyn Target {
        self.engine.target()
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        let updated = graph.states().iter().find(|state| state.update.is_some());
        if let Some(state) = updated {
            let reason = format!(
                "`{}` is updated, and weights are constants here; run the forward graph",
                state.name
            );
            return Err(unsupported(self.name(), "state", graph.name(), reason));
        }
        let start = Instant::now();
        let pinned = graph.clone().with_initial_values(pin(graph));
        let weights = pinned.states().iter().map(|state| match &state.init {
            Init::Value(tensor) => (state.name.clone(), engine_buffer::fingerprint(tensor.bytes())),
            _ => unreachable!("every state was pinned"),
        });
        let weights = weights.collect();
        let pinned_ns = start.elapsed().as_nanos() as u64;
        let threads = tuning.threads.unwrap_or(self.threads);
        let Prepared { model, translation_ns } = self.engine.prepare(&pinned, mode, threads)?;
        let types = |ports: &[overdrive_ir::Port]| {
            ports.iter().map(|p| graph.ty(p.value).clone()).collect()
        };
        Ok(Arc::new(HostExecutable {
            plan: plan(graph, mode),
            inputs: types(graph.inputs()),
            outputs: types(graph.outputs()),
            weights,
            model: Mutex::new(model),
            translation_ns: translation_ns + pinned_ns,
            backend: self.name().to_owned(),
        }))
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        Ok(engine_buffer::upload(tensor))
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        engine_buffer::download(buffer)
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        Ok(engine_buffer::output(ty))
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        engine_buffer::write(buffer, tensor)
    }
}

/// The value of each state of a graph, drawn once.
fn pin(graph: &Graph) -> impl FnMut(&str, &TensorType) -> Init {
    let declared: BTreeMap<&str, &Init> =
        graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
    move |name, ty| Init::Value(declared[name].tensor(name, ty))
}

/// An error that names what an engine cannot do.
pub(crate) fn unsupported(
    backend: &str,
    op: &str,
    scope: &str,
    reason: impl ToString,
) -> BackendError {
    BackendError::Unsupported {
        backend: backend.to_owned(),
        op: op.to_owned(),
        scope: scope.to_owned(),
        reason: reason.to_string(),
    }
}

/// The known part of a plan that an engine keeps to itself: inputs and outputs.
pub(crate) fn plan(graph: &Graph, mode: Mode) -> Plan {
    let mut plan = Plan { name: graph.name().to_owned(), mode, ..Plan::default() };
    let mut add = |ty: &TensorType, place: SlotPlace| {
        plan.slots.push(Slot { ty: ty.clone(), layout: Layout::RowMajor, place });
        SlotId(plan.slots.len() as u32 - 1)
    };
    let inputs = graph.inputs().iter().enumerate();
    let inputs = inputs.map(|(i, port)| add(graph.ty(port.value), SlotPlace::Input(i))).collect();
    let outputs = graph.outputs().iter().enumerate();
    let outputs =
        outputs.map(|(i, port)| add(graph.ty(port.value), SlotPlace::Output(i))).collect();
    (plan.inputs, plan.outputs) = (inputs, outputs);
    plan
}

/// Samples of a call by the host's clock: the mean of each sample's calls.
pub(crate) fn timed_on_the_host(
    protocol: Protocol,
    mut call: impl FnMut() -> Result<(), BackendError>,
) -> Result<Vec<TimedSample>, BackendError> {
    let calls = protocol.calls_per_sample.max(1);
    let mut sample = |_| {
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        let host_ns = start.elapsed().as_nanos() as f64 / f64::from(calls);
        Ok(TimedSample { device_ns: None, host_ns, cycles: None, flags: vec![] })
    };
    (0..protocol.samples).map(&mut sample).collect()
}

struct HostExecutable {
    plan: Plan,
    inputs: Vec<TensorType>,
    outputs: Vec<TensorType>,
    /// Fingerprint of each state.
    weights: BTreeMap<String, u64>,
    /// One call at a time: an engine's model has its own arena.
    model: Mutex<Box<dyn EngineModel>>,
    translation_ns: u64,
    backend: String,
}

impl HostExecutable {
    fn model(&self) -> MutexGuard<'_, Box<dyn EngineModel>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct HostSession {
    executable: Arc<HostExecutable>,
    /// Stamps of states that were found to be the weights.
    checked: Vec<u64>,
}

impl HostSession {
    /// Errs unless each state is what the graph was compiled with; looks at contents only when they
    /// are new.
    fn check_weights(&mut self, state: &State) -> Result<(), BackendError> {
        for (name, &expected) in &self.executable.weights {
            let wrong = |found: &str| BackendError::Mismatch {
                what: format!("state `{name}`"),
                expected: format!(
                    "its value when {} compiled the graph, of which it has made constants",
                    self.executable.backend
                ),
                found: found.to_owned(),
            };
            let buffer = state.get(name).ok_or_else(|| wrong("none"))?;
            let memory = engine_buffer::of(buffer)?;
            if self.checked.contains(&memory.stamp()) {
                continue;
            }
            if memory.fingerprint()? != expected {
                return Err(wrong("another; compile a graph that begins with it"));
            }
            self.checked.push(memory.stamp());
        }
        Ok(())
    }

    fn call(
        &mut self,
        Arguments { state, inputs, outputs }: Arguments<'_>,
    ) -> Result<(), BackendError> {
        self.check_weights(state)?;
        let executable = &self.executable;
        BackendError::check_count("inputs", executable.inputs.len(), inputs.len())?;
        BackendError::check_count("outputs", executable.outputs.len(), outputs.len())?;
        for (i, (ty, buffer)) in executable.inputs.iter().zip(inputs).enumerate() {
            engine_buffer::check(&format!("input {i}"), ty, &buffer.ty)?;
        }
        for (i, (ty, buffer)) in executable.outputs.iter().zip(&*outputs).enumerate() {
            engine_buffer::check(&format!("output {i}"), ty, &buffer.ty)?;
        }
        let inputs = inputs.iter().map(engine_buffer::of).collect::<Result<Vec<_>, _>>()?;
        let mut outputs =
            outputs.iter_mut().map(engine_buffer::of_mut).collect::<Result<Vec<_>, _>>()?;
        executable.model().call(&inputs, &mut outputs)
    }
}

impl Executable for HostExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn translation_ns(&self) -> u64 {
        self.translation_ns
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(HostSession { executable: self, checked: vec![] }))
    }
}

impl Session for HostSession {
    fn heap(&self) -> Heap {
        if self.executable.model().memory().is_some() { Heap::Library } else { Heap::Process }
    }

    fn plan(&self) -> &Plan {
        &self.executable.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        self.call(call)?;
        Ok(Box::new(Ready))
    }

    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        timed_on_the_host(protocol, || self.call(call.again()))
    }

    fn memory(&self) -> MemoryReport {
        self.executable.model().memory().unwrap_or_default()
    }

    fn profile(&mut self, _: Arguments<'_>, _: u32) -> Result<Vec<StepProfile>, BackendError> {
        let reason = "the engine's steps are its own; use the profiler that comes with it";
        let HostExecutable { backend, plan, .. } = &*self.executable;
        Err(unsupported(backend, "profile", &plan.name, reason))
    }
}
