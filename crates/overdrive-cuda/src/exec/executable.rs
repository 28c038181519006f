//! `CudaExecutable`: a plan with its constants, and the sessions that run it.
//!
//! Long because what an executable and a session hold, and a call through both, are one story.

use super::caller::Caller;
use super::compiled_step::{CompiledStep, SlotCopy, compile, different_first};
use super::copies::passed;
use super::enqueuer::{Enqueuer, Moment};
use super::queues::Queues;
use super::sampling::Sampling;
use super::storage::Storage;
use crate::launch::{Addresses, Site};
use crate::memory::{CudaMemory, DeviceBytes, PINNED};
use crate::nccl::{PlanRanks, Ranks};
use crate::{Device, Error};
use cudarc::driver::{CudaEvent, CudaStream};
use overdrive_ir::backend::{MemoryReport, Pending, Protocol, StepProfile, TimedSample};
use overdrive_ir::plan::{Derived, Prepared, Signature, Space, Step, StepKind};
use overdrive_ir::{Arguments, BackendError, Executable, Plan, Session, SlotId, Tensor, Tuning};
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

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
    constants: Arc<[DeviceBytes]>,
    derived: Derived<DeviceBytes>,
    /// The other ranks, where steps meet some.
    ranks: Option<Arc<PlanRanks>>,
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
        let meet = |ranks| PlanRanks::meet(ranks, &mut plan, tuning).map(Arc::new);
        let ranks = ranks.map(meet).transpose()?;
        let placing = |e: Error| e.during(format!("placing `{}`", plan.name));
        device.context().bind_to_thread().map_err(|e| placing(e.into()))?;
        check_memory(&plan, device).map_err(placing)?;
        let tasks = compiled(&plan, (device, ranks.as_ref()), tuning)?;
        let signature = Signature::new(&plan, &names[0], &names[1]);
        let mut addresses = Addresses::new(signature.slot_count(), 0);
        let constants = place_constants(&plan, device, &mut addresses).map_err(placing)?;
        Ok(Self {
            device: Arc::clone(device),
            plan: Arc::new(plan),
            tuning: tuning.clone(),
            names,
            compiled: Mutex::new(Some(tasks)),
            addresses,
            constants: constants.into(),
            derived: Derived::default(),
            ranks,
        })
    }
}

/// Whether a step of a plan is a collective of several ranks.
fn meets_others(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step.kind, StepKind::CollectiveStart { .. }))
}

/// Most threads that compile at a time.
const COMPILERS: usize = 16;

/// A task for each step of a plan. Compiling them takes most of the time to a first result, so
/// several threads share them.
///
/// The caller must not hold the device's turn: compilation takes it for memory, and so do threads
/// of others that call this device meanwhile.
///
/// # Panics
/// If a task takes more scratch than the plan gives its step.
fn compiled(
    plan: &Plan,
    (device, ranks): (&Arc<Device>, Option<&Arc<PlanRanks>>),
    tuning: &Tuning,
) -> Result<Vec<CompiledStep>, BackendError> {
    let of_step = |step| {
        let site = Site { plan, step, device, tuning, mode: plan.mode };
        let task = compile(&site, ranks)?;
        let (takes, given) = (task.workspace_bytes(), step.scratch_bytes);
        assert!(takes <= given, "`{}` takes {takes} bytes of scratch, not {given}", step.name);
        Ok(task)
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let compilers = cores.min(COMPILERS).min(plan.steps.len());
    let sort = |step: &Step| (step.name.clone(), step.cost.flops, step.cost.bytes);
    let order = different_first(plan.steps.iter().map(sort));
    let next = AtomicUsize::new(0);
    let take = || {
        let index = *order.get(next.fetch_add(1, Ordering::Relaxed))?;
        Some((index, &plan.steps[index]))
    };
    let compiler = || {
        let mut own = vec![];
        while let Some((index, step)) = take() {
            let task = of_step(step);
            if task.is_err() {
                next.store(plan.steps.len(), Ordering::Relaxed);
            }
            own.push((index, task));
        }
        own
    };
    let helper = || match device.context().bind_to_thread() {
        Ok(()) => compiler(),
        // The other threads go on without this one.
        Err(_) => vec![],
    };
    let mut all = thread::scope(|scope| {
        let others: Vec<_> = (1..compilers).map(|_| scope.spawn(helper)).collect();
        let mut all = compiler();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, task)| task).collect()
}

/// The memory that calls of an executable work in.
struct CudaSession {
    executable: Arc<CudaExecutable>,
    signature: Signature,
    prepared: Prepared,
    caller: Caller,
    workspace: DeviceBytes,
    sampling: Sampling,
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
        let shared = executable.ranks.as_ref().and_then(|ranks| {
            ranks.arena(&plan).transpose().map(|arena| arena.map(|arena| (ranks, arena)))
        });
        let shared = shared.transpose().map_err(placing)?;
        let main = shared.as_ref().map(|(ranks, arena)| ranks.lend(&plan, arena));
        let storage = Storage::new(&device, &plan, &mut addresses, main).map_err(placing)?;
        if let Some((ranks, arena)) = shared {
            ranks.introduce(&plan, &arena, &mut addresses).map_err(placing)?;
        }
        let queues = Queues::new(&device, &plan).map_err(placing)?;
        let enqueuer = Enqueuer {
            device,
            plan: Arc::clone(&plan),
            ranks: executable.ranks.clone(),
            tasks,
            deliveries,
            addresses,
            storage,
            queues,
            constants: Arc::clone(&executable.constants),
            derived,
            has_run: false,
        };
        let (caller, sampling) = (Caller::new(enqueuer), Sampling::default());
        Ok(Self { executable, signature, prepared, caller, workspace, sampling })
    }

    /// Checks and enters what the caller passes, and brings up to date what is prepared from
    /// states.
    fn enter(&mut self, call: Arguments<'_>) -> Result<(), BackendError> {
        let executable = Arc::clone(&self.executable);
        let (plan, device) = (&executable.plan, &executable.device);
        let calling = |e: Error| e.during(format!("calling `{}`", plan.name));
        device.context().bind_to_thread().map_err(|e| calling(e.into()))?;
        let enqueuer = &mut self.caller.enqueuer;
        let addresses = &mut enqueuer.addresses;
        self.signature.enter::<CudaMemory>(call, |slot, at| addresses.set(slot, at))?;
        let anew = || room_for_derived(plan, device).map_err(calling);
        let before = enqueuer.derived.address();
        let (stamps, derived) = (self.signature.stamps(), &mut enqueuer.derived);
        let deriving = self.prepared.share(&executable.derived, derived, stamps, anew)?;
        if enqueuer.derived.address() != before {
            place_derived(plan, &enqueuer.derived, &mut enqueuer.addresses);
        }
        let Some(deriving) = deriving else { return Ok(()) };
        for (index, step) in plan.steps.iter().enumerate() {
            if step.prepare && self.prepared.must_run(index, self.signature.stamps()) {
                let work = device.stream();
                let ran = enqueuer.tasks[index].run(device, work, &enqueuer.addresses);
                let ran = ran.and_then(|()| enqueuer.settle(work));
                ran.map_err(|e| e.during(enqueuer.during(index)))?;
            }
        }
        deriving.publish(&enqueuer.derived);
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
    let place = |(slot, tensor): (SlotId, &Tensor)| {
        let bytes = DeviceBytes::new(device, tensor.bytes().len())?;
        device.upload(tensor.bytes(), bytes.address())?;
        addresses.set(slot, bytes.address());
        Ok(bytes)
    };
    plan.constants().map(place).collect()
}

/// Memory for the results of prepare steps.
fn room_for_derived(plan: &Plan, device: &Arc<Device>) -> Result<DeviceBytes, Error> {
    DeviceBytes::new(device, plan.persistent_bytes.iter().sum())
}

/// Enters where the results of prepare steps lie.
fn place_derived(plan: &Plan, derived: &DeviceBytes, addresses: &mut Addresses) {
    for (slot, offset) in plan.persistent_slots() {
        addresses.set(slot, derived.address() + offset as u64);
    }
}

/// A call that was enqueued.
struct Enqueued {
    device: Arc<Device>,
    plan: Arc<Plan>,
    ranks: Option<Arc<PlanRanks>>,
    done: CudaEvent,
}

impl Pending for Enqueued {
    fn wait(self: Box<Self>) -> Result<(), BackendError> {
        let waited = match &self.ranks {
            None => self.done.synchronize().map_err(Error::from),
            Some(ranks) => ranks.wait(&self.done),
        };
        let waited = waited.and_then(|()| self.device.check_host());
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
        Ok(Box::new(CudaSession::new(Arc::clone(&self))?))
    }
}

impl Session for CudaSession {
    fn keeps_time(&self) -> bool {
        true
    }

    fn plan(&self) -> &Plan {
        &self.caller.enqueuer.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        let device = Arc::clone(&self.executable.device);
        let _turn = device.turn();
        self.enter(call)?;
        let called = self.caller.call();
        if let (Err(_), Some(ranks)) = (&called, &self.executable.ranks) {
            ranks.abort();
        }
        called?;
        let recorded = device.event().and_then(|event| {
            event.record(device.stream())?;
            Ok(event)
        });
        let (plan, ranks) = (Arc::clone(&self.executable.plan), self.executable.ranks.clone());
        let done = recorded.map_err(|e| e.during(format!("a step of `{}`", plan.name)))?;
        Ok(Box::new(Enqueued { device: Arc::clone(&device), plan, ranks, done }))
    }

    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        let device = Arc::clone(&self.executable.device);
        let _turn = device.turn();
        self.enter(call.again())?;
        let passed = passed(&call);
        let samples = self.sampling.take_samples(&mut self.caller, passed, protocol)?;
        device.check_host().map_err(|e| e.during("sampling"))?;
        Ok(samples)
    }

    fn memory(&self) -> MemoryReport {
        let (enqueuer, plan) = (&self.caller.enqueuer, &self.executable.plan);
        MemoryReport {
            transient_bytes: enqueuer.storage.peak_bytes() as u64,
            persistent_bytes: enqueuer.kept().map(|bytes| bytes.len() as u64).sum(),
            state_bytes: plan.state_bytes(Space::MAIN),
            offloaded_bytes: plan.peak_bytes(PINNED),
            workspace_bytes: self.workspace.len() as u64 + self.caller.graph_bytes(),
            context_bytes: self.executable.device.context_bytes(),
        }
    }

    fn profile(
        &mut self,
        mut call: Arguments<'_>,
        calls: u32,
    ) -> Result<Vec<StepProfile>, BackendError> {
        let device = Arc::clone(&self.executable.device);
        let _turn = device.turn();
        let mut profiles = StepProfile::of_steps(&self.executable.plan, calls);
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
            self.caller.enqueuer.enqueue(|moment| {
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
            device.check_host().map_err(|e| e.during("profiling"))?;
        }
        Ok(profiles)
    }
}
