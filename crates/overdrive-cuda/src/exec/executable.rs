//! `CudaExecutable`: a plan with everything that running it takes.

use super::copies::passed;
use super::replay::Replay;
use super::sampling::Sampling;
use super::step::{Copy, Task, compile, gather};
use super::storage::Storage;
use crate::entry::begin_call;
use crate::launch::{Addresses, Launch, Site};
use crate::memory::{CudaMemory, DeviceBytes};
use crate::{Device, Error};
use cudarc::driver::CudaEvent;
use overdrive_ir::backend::{MemoryReport, Pending, Protocol, Sample, StepProfile};
use overdrive_ir::plan::{Arguments, Note, Place, Prepared, StepKind};
use overdrive_ir::{BackendError, Buffer, Executable, Mode, Plan, SlotId, State, Tuning};
use std::sync::Arc;

/// A compiled graph on a GPU.
pub(crate) struct CudaExecutable {
    pub(super) device: Arc<Device>,
    pub(super) plan: Plan,
    /// One per step of the plan.
    pub(super) tasks: Vec<Task>,
    /// From where the plan left results to where the caller has them.
    pub(super) deliveries: Vec<Copy>,
    arguments: Arguments,
    prepared: Prepared,
    pub(super) addresses: Addresses,
    pub(super) storage: Storage,
    /// What outlives calls: results of prepare steps, and constants, each with the slots that lie
    /// in it.
    pub(super) kept: Vec<DeviceBytes>,
    workspace: DeviceBytes,
    replay: Option<Replay>,
    pub(super) sampling: Sampling,
    has_run: bool,
}

impl std::fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaExecutable({}, {} steps)", self.plan.name, self.tasks.len())
    }
}

/// A step about to be enqueued, and after.
pub(super) enum Moment {
    Before(usize),
    After,
}

impl CudaExecutable {
    /// Compiles the steps of a plan and places its memory. `names` are those of inputs and outputs
    /// that users see.
    ///
    /// # Errors
    /// `Unsupported` when a step asks for what this back end does not do; `OutOfMemory` when the
    /// plan needs more memory than there is; `Device` with CUDA's words.
    pub(crate) fn new(
        mut plan: Plan,
        device: &Arc<Device>,
        tuning: &Tuning,
        names: [&[String]; 2],
    ) -> Result<Self, BackendError> {
        let together = gather(&mut plan, device, tuning);
        let placing = |e: Error| e.during(format!("placing `{}`", plan.name));
        device.context().bind_to_thread().map_err(|e| placing(e.into()))?;
        check_memory(&plan, device).map_err(placing)?;
        let mode = plan.mode;
        let compiled = plan.steps.iter().enumerate().map(|(at, step)| {
            let site = Site { plan: &plan, step, device, tuning, mode };
            compile(&site, together.get(&at).map(Vec::as_slice))
        });
        let tasks = compiled.collect::<Result<Vec<Task>, _>>()?;
        let arguments = Arguments::new(&plan, names[0], names[1]);
        let states = arguments.state_names();
        let prepared = Prepared::new(&plan, &states);
        let deliver = |(from, home)| Copy::new(&plan, from, home);
        let deliveries = arguments.deliveries(&plan).into_iter().map(deliver).collect();
        let scratch = tasks.iter().map(Task::workspace_bytes).max().unwrap_or(0);
        let workspace = DeviceBytes::new(device, scratch).map_err(placing)?;
        let mut addresses = Addresses::new(arguments.slot_count(), workspace.address());
        let kept = place_kept(&plan, device, &mut addresses).map_err(placing)?;
        let storage = Storage::new(device, &plan, &mut addresses).map_err(placing)?;
        let replay = (mode == Mode::Graph).then(Replay::default);
        let mut executable = Self {
            device: Arc::clone(device),
            tasks,
            deliveries,
            arguments,
            prepared,
            addresses,
            storage,
            kept,
            workspace,
            replay,
            sampling: Sampling::default(),
            has_run: false,
            plan,
        };
        executable.say_what_runs_on_the_host();
        executable.refuse_host_steps_in_graphs();
        Ok(executable)
    }

    /// Kernels that do not know the element types of their step leave it to the reference, as the
    /// plan then says.
    fn say_what_runs_on_the_host(&mut self) {
        for (task, step) in self.tasks.iter().zip(&self.plan.steps) {
            if matches!((task, &step.kind), (Task::Host(_), StepKind::Kernel(_))) {
                let reason =
                    "its kernel does not take these types: the f64 reference runs on the host"
                        .to_owned();
                let (what, scope) = (step.name.clone(), step.scope.clone());
                self.plan.notes.push(Note::Declined { what, scope, reason });
            }
        }
    }

    /// A capture cannot wait for the host: such a plan is launched step by step, and says so.
    fn refuse_host_steps_in_graphs(&mut self) {
        let on_host = |(task, step): (&Task, &overdrive_ir::plan::Step)| {
            (matches!(task, Task::Host(_)) && !step.prepare).then(|| step.scope.clone())
        };
        let scope = self.tasks.iter().zip(&self.plan.steps).find_map(on_host);
        if let (Some(scope), Some(_)) = (scope, &self.replay) {
            self.decline_replay(
                scope,
                "a step runs on the host, which a graph cannot wait for".to_owned(),
            );
        }
    }

    /// Goes without graphs, and says why.
    fn decline_replay(&mut self, scope: String, reason: String) {
        let what = "capture and replay as a graph".to_owned();
        self.plan.notes.push(Note::Declined { what, scope, reason });
        self.replay = None;
    }

    /// True where a step waits for the host in every call.
    pub(super) fn has_host_steps(&self) -> bool {
        self.tasks
            .iter()
            .zip(&self.plan.steps)
            .any(|(t, s)| matches!(t, Task::Host(_)) && !s.prepare)
    }

    fn during(&self, index: usize) -> String {
        let step = &self.plan.steps[index];
        format!("step {index} `{}` at {}", step.name, step.scope)
    }

    /// Checks and enters what the caller passes, and brings up to date what is prepared from
    /// states.
    pub(super) fn enter(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
    ) -> Result<(), BackendError> {
        let bound = self.device.context().bind_to_thread();
        bound.map_err(|e| Error::from(e).during(format!("calling `{}`", self.plan.name)))?;
        let addresses = &mut self.addresses;
        self.arguments
            .enter::<CudaMemory>(state, inputs, outputs, |slot, at| addresses.set(slot, at))?;
        for index in 0..self.tasks.len() {
            let is_stale = self.plan.steps[index].prepare
                && self.prepared.is_stale(index, self.arguments.stamps());
            if is_stale {
                let ran = self.tasks[index].run(&self.device, &self.addresses);
                ran.and_then(|()| self.settle()).map_err(|e| e.during(self.during(index)))?;
            }
        }
        Ok(())
    }

    /// Waits after each step of the first call, so that a fault has the name of its step.
    fn settle(&self) -> Result<(), Error> {
        if !self.has_run {
            self.device.stream().synchronize()?;
        }
        Ok(())
    }

    /// Enqueues one call to what was entered; `observe` hears of each step.
    pub(super) fn enqueue(
        &mut self,
        mut observe: impl FnMut(Moment) -> Result<(), Error>,
    ) -> Result<(), BackendError> {
        begin_call();
        for index in 0..self.tasks.len() {
            if self.plan.steps[index].prepare {
                continue;
            }
            let mut step = |executable: &mut Self| {
                executable.storage.before(index, &mut executable.addresses)?;
                observe(Moment::Before(index))?;
                executable.tasks[index].run(&executable.device, &executable.addresses)?;
                observe(Moment::After)?;
                executable.settle()
            };
            step(self).map_err(|e| e.during(self.during(index)))?;
            self.storage.after(index);
        }
        let delivered = self
            .deliveries
            .iter()
            .try_for_each(|c| c.launch(self.device.stream(), &self.addresses));
        delivered
            .map_err(|e| e.during(format!("delivering the results of `{}`", self.plan.name)))?;
        self.storage.after(self.tasks.len());
        self.has_run = true;
        Ok(())
    }

    /// Enqueues one call by the means of the mode.
    pub(super) fn call(&mut self) -> Result<(), BackendError> {
        // The first call loads kernels, which a capture must not.
        if !self.has_run {
            return self.enqueue(|_| Ok(()));
        }
        let Some(mut replay) = self.replay.take() else { return self.enqueue(|_| Ok(())) };
        match replay.call(self)? {
            None => self.replay = Some(replay),
            Some(reason) => self.decline_replay(self.plan.name.clone(), reason),
        }
        Ok(())
    }
}

/// Errs with the size of a plan that is larger than what the device has.
fn check_memory(plan: &Plan, device: &Device) -> Result<(), Error> {
    let needed = plan.needed_bytes();
    let pool = device.pool_use()?;
    let (free, _) = device.context().mem_get_info()?;
    let available = free as u64 + pool.reserved_bytes.saturating_sub(pool.used_bytes);
    if needed <= available { Ok(()) } else { Err(Error::OutOfMemory { needed, available }) }
}

/// Places constants and the persistent arena.
fn place_kept(
    plan: &Plan,
    device: &Arc<Device>,
    addresses: &mut Addresses,
) -> Result<Vec<DeviceBytes>, Error> {
    let persistent = DeviceBytes::new(device, plan.persistent_bytes.iter().sum())?;
    let mut kept: Vec<DeviceBytes> = Vec::new();
    for (index, slot) in plan.slots.iter().enumerate() {
        let id = SlotId(index as u32);
        match &slot.place {
            Place::Persistent { offset, .. } => {
                addresses.set(id, persistent.address() + *offset as u64)
            }
            Place::Constant(tensor) => {
                let bytes = DeviceBytes::new(device, tensor.bytes().len())?;
                device.staging().upload(tensor.bytes(), bytes.address())?;
                addresses.set(id, bytes.address());
                kept.push(bytes);
            }
            Place::Input(_) | Place::Output(_) | Place::State(_) | Place::Arena { .. } => {}
        }
    }
    kept.push(persistent);
    Ok(kept)
}

/// A call that was enqueued.
struct Enqueued {
    device: Arc<Device>,
    plan: String,
    done: CudaEvent,
}

impl Pending for Enqueued {
    fn wait(self: Box<Self>) -> Result<(), BackendError> {
        let waited = self.done.synchronize();
        waited.map_err(|e| Error::from(e).during(format!("a step of `{}`", self.plan)))?;
        self.device.recycle(self.done);
        Ok(())
    }
}

impl Executable for CudaExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
    ) -> Result<Box<dyn Pending>, BackendError> {
        self.enter(state, inputs, outputs)?;
        self.call()?;
        let recorded = self.device.event().and_then(|event| {
            event.record(self.device.stream())?;
            Ok(event)
        });
        let done = recorded.map_err(|e| e.during(format!("a step of `{}`", self.plan.name)))?;
        Ok(Box::new(Enqueued {
            device: Arc::clone(&self.device),
            plan: self.plan.name.clone(),
            done,
        }))
    }

    fn keeps_time(&self) -> bool {
        true
    }

    fn sample(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
        protocol: Protocol,
    ) -> Result<Vec<Sample>, BackendError> {
        self.enter(state, inputs, outputs)?;
        let passed = passed(state, inputs, outputs);
        let mut sampling = std::mem::take(&mut self.sampling);
        let samples = sampling.take_samples(self, passed, protocol);
        self.sampling = sampling;
        samples
    }

    fn memory(&self) -> MemoryReport {
        let graphs = self.replay.as_ref().map_or(0, Replay::bytes);
        MemoryReport {
            transient_bytes: self.storage.peak_bytes() as u64,
            persistent_bytes: self.kept.iter().map(|bytes| bytes.len() as u64).sum(),
            state_bytes: self.arguments.state_bytes() as u64,
            workspace_bytes: self.workspace.len() as u64 + graphs,
            context_bytes: self.device.context_bytes(),
        }
    }

    fn profile(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
        calls: u32,
    ) -> Result<Vec<StepProfile>, BackendError> {
        let mut profiles = StepProfile::of_steps(&self.plan, calls);
        for _ in 0..calls {
            self.enter(state, inputs, outputs)?;
            let device = Arc::clone(&self.device);
            let mark = || {
                let event = device.event()?;
                event.record(device.stream())?;
                Ok::<_, Error>(event)
            };
            let failed = |e: Error| e.during("profiling");
            let origin = mark().map_err(failed)?;
            let (mut starts, mut ends) = (Vec::new(), Vec::new());
            self.enqueue(|moment| {
                match moment {
                    Moment::Before(index) => starts.push((index, mark()?)),
                    Moment::After => ends.push(mark()?),
                }
                Ok(())
            })?;
            for ((index, start), end) in starts.into_iter().zip(ends) {
                let ns =
                    |from: &CudaEvent, to: &CudaEvent| Ok(f64::from(from.elapsed_ms(to)?) * 1e6);
                let times = ns(&origin, &start).and_then(|at| Ok((at, ns(&start, &end)?)));
                let (at, time) = times.map_err(failed)?;
                profiles[index].start_ns.push(at);
                profiles[index].time_ns.push(time);
                device.recycle(start);
                device.recycle(end);
            }
            device.recycle(origin);
        }
        Ok(profiles)
    }
}
