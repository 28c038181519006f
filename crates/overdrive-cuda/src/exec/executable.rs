//! `CudaExecutable`: a plan with its constants, and the sessions that run it.
//!
//! Long because what an executable and a session hold, and a call through both, are one story.

use super::compiled_step::{CompiledStep, SlotCopy, compile};
use super::copies::passed;
use super::queues::Queues;
use super::replay::Replay;
use super::sampling::Sampling;
use super::storage::Storage;
use crate::launch::{Addresses, Launch, Site};
use crate::memory::{CudaMemory, DeviceBytes, PINNED};
use crate::nccl::Ranks;
use crate::{Device, Error};
use cudarc::driver::{CudaEvent, CudaStream};
use overdrive_ir::backend::{MemoryReport, Pending, Protocol, StepProfile, TimedSample};
use overdrive_ir::plan::{Derived, Note, Prepared, Signature, SlotPlace, Space, StepKind};
use overdrive_ir::{
    Arguments, BackendError, Executable, Mode, Plan, Session, SlotId, Tuning, agree_on,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled graph on a GPU.
pub(crate) struct CudaExecutable {
    device: Arc<Device>,
    plan: Arc<Plan>,
    tuning: Tuning,
    /// Names of inputs and outputs that users see.
    names: [Vec<String>; 2],
    /// Compiled steps for the first session, since compiling is slow.
    compiled: Mutex<Option<Vec<CompiledStep>>>,
    /// Addresses of the constants, and of nothing else.
    addresses: Addresses,
    constants: Vec<DeviceBytes>,
    derived: Derived<DeviceBytes>,
    /// The other ranks, where steps meet some.
    ranks: Option<Arc<Ranks>>,
}

impl std::fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaExecutable({}, {} steps)", self.plan.name, self.plan.steps.len())
    }
}

impl CudaExecutable {
    /// Compiles the steps of a plan and places its constants. `names` are those of inputs and
    /// outputs that users see; `ranks` are for steps with other ranks, which must all compile such
    /// plans at the same time.
    ///
    /// # Errors
    /// `Unsupported` when a step asks for what this back end does not do; `OutOfMemory` when the
    /// plan needs more memory than there is. `Device` with CUDA's words; `Ranks` when other ranks
    /// do not have the same collectives.
    pub(crate) fn new(
        mut plan: Plan,
        device: &Arc<Device>,
        tuning: &Tuning,
        names: [Vec<String>; 2],
        ranks: Option<&Arc<Ranks>>,
    ) -> Result<Self, BackendError> {
        let ranks = ranks.filter(|_| meets_others(&plan));
        if let Some(ranks) = ranks {
            agree_on(ranks.communicator(), &plan)?;
            ranks.meet(&plan).map_err(|e| e.during(format!("meeting for `{}`", plan.name)))?;
        }
        let placing = |e: Error| e.during(format!("placing `{}`", plan.name));
        device.context().bind_to_thread().map_err(|e| placing(e.into()))?;
        check_memory(&plan, device).map_err(placing)?;
        let tasks = compiled(&plan, (device, ranks), tuning)?;
        let signature = Signature::new(&plan, &names[0], &names[1]);
        let mut addresses = Addresses::new(signature.slot_count(), 0);
        let constants = place_constants(&plan, device, &mut addresses).map_err(placing)?;
        say_what_runs_on_the_host(&mut plan, &tasks);
        Ok(Self {
            device: Arc::clone(device),
            plan: Arc::new(plan),
            tuning: tuning.clone(),
            names,
            compiled: Mutex::new(Some(tasks)),
            addresses,
            constants,
            derived: Derived::default(),
            ranks: ranks.cloned(),
        })
    }
}

/// Whether a step of a plan is a collective of several ranks.
fn meets_others(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step.kind, StepKind::CollectiveStart { .. }))
}

/// A task for each step of a plan.
fn compiled(
    plan: &Plan,
    (device, ranks): (&Arc<Device>, Option<&Arc<Ranks>>),
    tuning: &Tuning,
) -> Result<Vec<CompiledStep>, BackendError> {
    let compiled = plan.steps.iter().map(|step| {
        let site = Site { plan, step, device, tuning, mode: plan.mode };
        compile(&site, ranks)
    });
    compiled.collect()
}

/// Kernels that do not know the element types of their step leave it to the reference, as the plan
/// then says.
fn say_what_runs_on_the_host(plan: &mut Plan, tasks: &[CompiledStep]) {
    for (task, step) in tasks.iter().zip(&plan.steps) {
        if matches!((task, &step.kind), (CompiledStep::Host(_), StepKind::Kernel(_))) {
            let reason = "its kernel does not take these types: the f64 reference runs on the host"
                .to_owned();
            let (what, scope) = (step.name.clone(), step.scope.clone());
            plan.notes.push(Note::Declined { what, scope, reason });
        }
    }
}

/// The memory that calls of an executable work in.
pub(super) struct CudaSession {
    executable: Arc<CudaExecutable>,
    pub(super) device: Arc<Device>,
    pub(super) plan: Arc<Plan>,
    /// One per step of the plan.
    pub(super) tasks: Vec<CompiledStep>,
    /// From where the plan left results to where the caller has them.
    pub(super) deliveries: Vec<SlotCopy>,
    signature: Signature,
    prepared: Prepared,
    pub(super) addresses: Addresses,
    pub(super) storage: Storage,
    pub(super) queues: Queues,
    /// Results of prepare steps.
    derived: Arc<DeviceBytes>,
    workspace: DeviceBytes,
    replay: Option<Replay>,
    pub(super) sampling: Sampling,
    has_run: bool,
}

/// A step about to be enqueued on a stream, and after.
pub(super) enum Moment<'a> {
    Before(usize, &'a CudaStream),
    After(&'a CudaStream),
}

impl CudaSession {
    fn new(executable: Arc<CudaExecutable>) -> Result<Self, BackendError> {
        let (plan, device) = (Arc::clone(&executable.plan), Arc::clone(&executable.device));
        let placing = |e: Error| e.during(format!("placing `{}`", plan.name));
        device.context().bind_to_thread().map_err(|e| placing(e.into()))?;
        let ready = executable.compiled.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tasks = match ready {
            Some(tasks) => tasks,
            None => {
                let place = (&device, executable.ranks.as_ref());
                compiled(&plan, place, &executable.tuning)?
            }
        };
        let signature = Signature::new(&plan, &executable.names[0], &executable.names[1]);
        let prepared = Prepared::new(&plan, &signature.state_names());
        let deliver = |(from, home)| SlotCopy::new(&plan, from, home);
        let deliveries = signature.deliveries(&plan).into_iter().map(deliver).collect();
        let scratch = tasks.iter().map(CompiledStep::workspace_bytes).max().unwrap_or(0);
        let workspace = DeviceBytes::new(&device, scratch).map_err(placing)?;
        let mut addresses = executable.addresses.clone();
        addresses.set_workspace(workspace.address());
        let derived = Arc::new(room_for_derived(&plan, &device).map_err(placing)?);
        place_derived(&plan, &derived, &mut addresses);
        let storage = Storage::new(&device, &plan, &mut addresses).map_err(placing)?;
        let queues = Queues::new(&device, &plan).map_err(placing)?;
        let replay = (plan.mode == Mode::Graph).then(Replay::default);
        let mut session = Self {
            executable,
            device,
            tasks,
            deliveries,
            signature,
            prepared,
            addresses,
            storage,
            queues,
            derived,
            workspace,
            replay,
            sampling: Sampling::default(),
            has_run: false,
            plan,
        };
        session.refuse_host_steps_in_graphs();
        session.refuse_ranks_in_graphs();
        Ok(session)
    }

    /// Memory that outlives calls: results of prepare steps, and constants.
    pub(super) fn kept(&self) -> impl Iterator<Item = &DeviceBytes> {
        self.executable.constants.iter().chain([&*self.derived])
    }

    /// A capture cannot wait for the host: such a plan is launched step by step, and says so.
    fn refuse_host_steps_in_graphs(&mut self) {
        let on_host = |(task, step): (&CompiledStep, &overdrive_ir::plan::Step)| {
            (matches!(task, CompiledStep::Host(_)) && !step.prepare).then(|| step.scope.clone())
        };
        let scope = self.tasks.iter().zip(&self.plan.steps).find_map(on_host);
        if let (Some(scope), Some(_)) = (scope, &self.replay) {
            self.decline_replay(
                scope,
                "a step runs on the host, which a graph cannot wait for".to_owned(),
            );
        }
    }

    /// Captured collectives would outlive their group when another rank fails. So a plan with
    /// collectives is launched step by step, and says so.
    fn refuse_ranks_in_graphs(&mut self) {
        if self.executable.ranks.is_some() && self.replay.is_some() {
            let reason = "its collectives end with any rank, which a graph cannot wait for";
            self.decline_replay(self.plan.name.clone(), reason.to_owned());
        }
    }

    /// Goes without graphs, and says why.
    fn decline_replay(&mut self, scope: String, reason: String) {
        let what = "capture and replay as a graph".to_owned();
        Arc::make_mut(&mut self.plan).notes.push(Note::Declined { what, scope, reason });
        self.replay = None;
    }

    /// True where a step waits for the host in every call.
    pub(super) fn has_host_steps(&self) -> bool {
        self.tasks
            .iter()
            .zip(&self.plan.steps)
            .any(|(t, s)| matches!(t, CompiledStep::Host(_)) && !s.prepare)
    }

    fn during(&self, index: usize) -> String {
        let step = &self.plan.steps[index];
        format!("step {index} `{}` at {}", step.name, step.scope)
    }

    /// Checks and enters what the caller passes, and brings up to date what is prepared from
    /// states.
    pub(super) fn enter(&mut self, call: Arguments<'_>) -> Result<(), BackendError> {
        let calling = |e: Error| e.during(format!("calling `{}`", self.plan.name));
        self.device.context().bind_to_thread().map_err(|e| calling(e.into()))?;
        let addresses = &mut self.addresses;
        self.signature.enter::<CudaMemory>(call, |slot, at| addresses.set(slot, at))?;
        let executable = Arc::clone(&self.executable);
        let anew = || room_for_derived(&executable.plan, &executable.device).map_err(calling);
        let before = self.derived.address();
        let stamps = self.signature.stamps();
        let deriving = self.prepared.share(&executable.derived, &mut self.derived, stamps, anew)?;
        if self.derived.address() != before {
            place_derived(&executable.plan, &self.derived, &mut self.addresses);
        }
        let Some(deriving) = deriving else { return Ok(()) };
        for index in 0..self.tasks.len() {
            let is_stale = self.plan.steps[index].prepare
                && self.prepared.must_run(index, self.signature.stamps());
            if is_stale {
                let work = self.device.stream();
                let ran = self.tasks[index].run(&self.device, work, &self.addresses);
                ran.and_then(|()| self.settle(work)).map_err(|e| e.during(self.during(index)))?;
            }
        }
        deriving.publish(&self.derived);
        Ok(())
    }

    /// Waits after each step of the first call, so that a fault has the name of its step.
    fn settle(&self, stream: &CudaStream) -> Result<(), Error> {
        match &self.executable.ranks {
            _ if self.has_run => {}
            None => stream.synchronize()?,
            Some(ranks) => {
                let event = self.device.event()?;
                event.record(stream)?;
                ranks.wait(&event)?;
                self.device.recycle(event);
            }
        }
        Ok(())
    }

    /// Enqueues one call to what was entered; `observe` hears of each step.
    pub(super) fn enqueue(
        &mut self,
        mut observe: impl FnMut(Moment<'_>) -> Result<(), Error>,
    ) -> Result<(), BackendError> {
        let begun = self.queues.begin();
        begun.map_err(|e| e.during(format!("starting a call of `{}`", self.plan.name)))?;
        for index in 0..self.tasks.len() {
            if self.plan.steps[index].prepare {
                continue;
            }
            let mut step = |session: &mut Self| {
                session.storage.before(index, &mut session.addresses)?;
                let (queues, step) = (&session.queues, &session.plan.steps[index]);
                let stream = queues.of(step);
                queues.before(step)?;
                observe(Moment::Before(index, stream))?;
                session.tasks[index].run(&session.device, stream, &session.addresses)?;
                observe(Moment::After(stream))?;
                queues.after(step)?;
                session.settle(stream)
            };
            step(self).map_err(|e| e.during(self.during(index)))?;
            self.storage.after(index);
        }
        let copies = || {
            let mut copies = self.deliveries.iter();
            copies.try_for_each(|c| c.launch(self.device.stream(), &self.addresses))
        };
        let delivered = self.queues.end().and_then(|()| copies());
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

fn place_constants(
    plan: &Plan,
    device: &Arc<Device>,
    addresses: &mut Addresses,
) -> Result<Vec<DeviceBytes>, Error> {
    let mut constants = Vec::new();
    for (index, slot) in plan.slots.iter().enumerate() {
        if let SlotPlace::Constant(tensor) = &slot.place {
            let bytes = DeviceBytes::new(device, tensor.bytes().len())?;
            device.upload(tensor.bytes(), bytes.address())?;
            addresses.set(SlotId(index as u32), bytes.address());
            constants.push(bytes);
        }
    }
    Ok(constants)
}

/// Memory for the results of prepare steps.
fn room_for_derived(plan: &Plan, device: &Arc<Device>) -> Result<DeviceBytes, Error> {
    DeviceBytes::new(device, plan.persistent_bytes.iter().sum())
}

/// Enters where the results of prepare steps lie.
fn place_derived(plan: &Plan, derived: &DeviceBytes, addresses: &mut Addresses) {
    for (index, slot) in plan.slots.iter().enumerate() {
        if let SlotPlace::Persistent { offset, .. } = &slot.place {
            addresses.set(SlotId(index as u32), derived.address() + *offset as u64);
        }
    }
}

/// A call that was enqueued.
struct Enqueued {
    device: Arc<Device>,
    plan: Arc<Plan>,
    ranks: Option<Arc<Ranks>>,
    done: CudaEvent,
}

impl Pending for Enqueued {
    fn wait(self: Box<Self>) -> Result<(), BackendError> {
        let waited = match &self.ranks {
            None => self.done.synchronize().map_err(Error::from),
            Some(ranks) => ranks.wait(&self.done),
        };
        waited.map_err(|e| e.during(format!("a step of `{}`", self.plan.name)))?;
        self.device.recycle(self.done);
        Ok(())
    }
}

impl Executable for CudaExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError> {
        let _turn = self.device.turn();
        Ok(Box::new(CudaSession::new(Arc::clone(&self))?))
    }
}

impl Session for CudaSession {
    fn keeps_time(&self) -> bool {
        true
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        let device = Arc::clone(&self.device);
        let _turn = device.turn();
        self.enter(call)?;
        self.call()?;
        let recorded = device.event().and_then(|event| {
            event.record(device.stream())?;
            Ok(event)
        });
        let done = recorded.map_err(|e| e.during(format!("a step of `{}`", self.plan.name)))?;
        let (plan, ranks) = (Arc::clone(&self.plan), self.executable.ranks.clone());
        Ok(Box::new(Enqueued { device: Arc::clone(&device), plan, ranks, done }))
    }

    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        let device = Arc::clone(&self.device);
        let _turn = device.turn();
        self.enter(call.again())?;
        let passed = passed(&call);
        let mut sampling = std::mem::take(&mut self.sampling);
        let samples = sampling.take_samples(self, passed, protocol);
        self.sampling = sampling;
        samples
    }

    fn memory(&self) -> MemoryReport {
        let graphs = self.replay.as_ref().map_or(0, Replay::bytes);
        MemoryReport {
            transient_bytes: self.storage.peak_bytes() as u64,
            persistent_bytes: self.kept().map(|bytes| bytes.len() as u64).sum(),
            state_bytes: self.plan.state_bytes(Space::MAIN),
            offloaded_bytes: self.plan.peak_bytes(PINNED),
            workspace_bytes: self.workspace.len() as u64 + graphs,
            context_bytes: self.device.context_bytes(),
        }
    }

    fn profile(
        &mut self,
        mut call: Arguments<'_>,
        calls: u32,
    ) -> Result<Vec<StepProfile>, BackendError> {
        let device = Arc::clone(&self.device);
        let _turn = device.turn();
        let mut profiles = StepProfile::of_steps(&self.plan, calls);
        for _ in 0..calls {
            self.enter(call.again())?;
            let mark = |stream: &CudaStream| {
                let event = device.event()?;
                event.record(stream)?;
                Ok::<_, Error>(event)
            };
            let failed = |e: Error| e.during("profiling");
            let origin = mark(device.stream()).map_err(failed)?;
            let (mut starts, mut ends) = (Vec::new(), Vec::new());
            self.enqueue(|moment| {
                match moment {
                    Moment::Before(index, stream) => starts.push((index, mark(stream)?)),
                    Moment::After(stream) => ends.push(mark(stream)?),
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
