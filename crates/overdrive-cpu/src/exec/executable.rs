//! `CpuExecutable`: a plan with its constants, and the sessions that run it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use overdrive_ir::backend::{
    CacheState, MemoryReport, Pending, Protocol, Ready, StepProfile, TimedSample,
};
use overdrive_ir::plan::{Derived, Prepared, Signature, Space};
use overdrive_ir::{
    Arguments, BackendError, Communicator, Executable, Plan, RankError, Session, Tensor, check_mesh,
};

use super::compiled_step::{CompiledStep, compile};
use super::copy::SlotCopy;
use super::needed::is_needed;
use super::runnable::Runnable;
use super::storage::Storage;
use crate::isa::InstructionSet;
use crate::memory::{AlignedBytes, CpuMemory, available_bytes};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A compiled graph on the CPU.
pub struct CpuExecutable {
    plan: Arc<Plan>,
    pool: Arc<Pool>,
    /// Names of inputs and outputs that users see.
    names: [Vec<String>; 2],
    /// Addresses of the constants, and of nothing else.
    slots: SlotTable,
    constants: Vec<AlignedBytes>,
    derived: Derived<AlignedBytes>,
    /// The steps of the first session. They were compiled to see that they can be.
    compiled: Mutex<Option<Vec<CompiledStep>>>,
    communicator: Option<Arc<dyn Communicator>>,
    /// The instruction set in force while sessions are made and run.
    set: InstructionSet,
}

impl std::fmt::Debug for CpuExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuExecutable({}, {} steps)", self.plan.name, self.plan.steps.len())
    }
}

impl CpuExecutable {
    /// Compiles the steps of a plan and places its constants. `names` are those of inputs and
    /// outputs that users see. The communicator is for steps with other ranks, whose plans have the
    /// same collectives.
    ///
    /// # Errors
    /// `Unsupported` when a step asks for what this back end does not do; `OutOfMemory` when the
    /// plan needs more memory than there is. `Mismatch` when its collectives are of another mesh.
    pub fn new(
        plan: Plan,
        pool: Arc<Pool>,
        names: [Vec<String>; 2],
        communicator: Option<Arc<dyn Communicator>>,
    ) -> Result<Self, BackendError> {
        check_memory(&plan)?;
        if let Some(communicator) = &communicator {
            check_mesh(communicator.mesh(), &plan)?;
        }
        let steps = compiled(&plan, communicator.as_ref())?;
        let signature = Signature::new(&plan, &names[0], &names[1]);
        let mut slots = SlotTable::new(signature.slot_count());
        let constants = place_constants(&plan, &mut slots)?;
        Ok(Self {
            plan: Arc::new(plan),
            pool,
            names,
            slots,
            constants,
            derived: Derived::default(),
            compiled: Mutex::new(Some(steps)),
            communicator,
            set: InstructionSet::in_force(),
        })
    }
}

/// A compiled step for each of a plan.
fn compiled(
    plan: &Plan,
    communicator: Option<&Arc<dyn Communicator>>,
) -> Result<Vec<CompiledStep>, BackendError> {
    plan.steps.iter().map(|step| compile(plan, step, communicator)).collect()
}

/// The memory and steps that calls of an executable work in.
struct CpuSession {
    executable: Arc<CpuExecutable>,
    pool: Arc<Pool>,
    /// One per step of the plan. They hold scratch, so that no other session has them.
    steps: Vec<CompiledStep>,
    /// From where the plan left results to where the caller has them.
    deliveries: Vec<SlotCopy>,
    signature: Signature,
    prepared: Prepared,
    slots: SlotTable,
    storage: Storage,
    /// Results of prepare steps.
    kept: Arc<AlignedBytes>,
    has_run: bool,
    /// Scratch of all workers that the first call asked for.
    scratch_bytes: usize,
}

impl CpuSession {
    fn new(executable: Arc<CpuExecutable>) -> Result<Self, BackendError> {
        let plan = &executable.plan;
        let pool = match executable.pool.threads() {
            // The caller's own thread: such sessions need not wait for each other.
            1 => executable.set.during(|| Pool::new(NonZeroUsize::MIN)).map(Arc::new).map_err(
                |e| BackendError::Device {
                    step: "making room for a thread".to_owned(),
                    message: e.to_string(),
                },
            )?,
            _ => Arc::clone(&executable.pool),
        };
        let ready = executable.compiled.lock().unwrap_or_else(PoisonError::into_inner).take();
        let communicator = executable.communicator.as_ref();
        let steps = match ready {
            Some(steps) => steps,
            None => executable.set.during(|| compiled(plan, communicator))?,
        };
        let [inputs, outputs] = &executable.names;
        let signature = Signature::new(plan, inputs, outputs);
        let prepared = Prepared::new(plan, &signature.state_names());
        let deliver = |(from, home)| SlotCopy::new(from, home, plan.slot(from).bytes());
        let deliveries = signature.deliveries(plan).into_iter().map(deliver).collect();
        let mut slots = SlotTable::new(0);
        slots.clone_from(&executable.slots);
        let kept = Arc::new(keep(plan)?);
        place_kept(plan, &mut slots, &kept);
        let storage = Storage::new(plan, &mut slots)?;
        let (has_run, scratch_bytes) = (false, 0);
        Ok(Self {
            executable,
            pool,
            steps,
            deliveries,
            signature,
            prepared,
            slots,
            storage,
            kept,
            has_run,
            scratch_bytes,
        })
    }

    /// One call; `observe` is given each step that is not skipped, by index, and runs it.
    ///
    /// # Errors
    /// When what is passed does not fit, memory is short, or another rank has failed.
    fn call(
        &mut self,
        call: Arguments<'_>,
        mut observe: impl FnMut(usize, &mut dyn FnMut()),
    ) -> Result<(), BackendError> {
        let set = self.executable.set;
        set.during(|| self.call_in_force(call, &mut observe))
    }

    fn call_in_force(
        &mut self,
        call: Arguments<'_>,
        observe: &mut dyn FnMut(usize, &mut dyn FnMut()),
    ) -> Result<(), BackendError> {
        let executable = Arc::clone(&self.executable);
        let (plan, pool) = (&*executable.plan, &*self.pool);
        if !self.has_run {
            pool.take_asked();
        }
        let slots = &mut self.slots;
        self.signature.enter::<CpuMemory>(call, |slot, start| slots.set(slot, start))?;
        let stamps = self.signature.stamps();
        let before = Arc::as_ptr(&self.kept);
        let deriving =
            self.prepared.share(&executable.derived, &mut self.kept, stamps, || keep(plan))?;
        if Arc::as_ptr(&self.kept) != before {
            place_kept(plan, &mut self.slots, &self.kept);
        }
        for (index, step) in self.steps.iter().enumerate() {
            self.storage.before(index, &mut self.slots)?;
            let is_known = plan.steps[index].prepare
                && !self.prepared.must_run(index, self.signature.stamps());
            if !is_known && is_needed(plan, index, &self.slots) {
                let slots = &self.slots;
                let mut ran: Result<(), RankError> = Ok(());
                observe(index, &mut || ran = step.run(pool, slots));
                ran?;
            }
            self.storage.after(index);
        }
        self.deliveries.iter().for_each(|copy| copy.run(pool, &self.slots));
        self.storage.after(self.steps.len());
        if let Some(deriving) = deriving {
            deriving.publish(&self.kept);
        }
        if !self.has_run {
            self.scratch_bytes = pool.take_asked();
            // A worker that came late to the first call would otherwise find its scratch too small
            // in the second.
            pool.level_scratch();
            self.has_run = true;
        }
        Ok(())
    }
}

/// Errs with the size of a plan that is larger than memory.
fn check_memory(plan: &Plan) -> Result<(), BackendError> {
    let needed = plan.needed_bytes();
    let available = available_bytes();
    if needed <= available {
        return Ok(());
    }
    let remedy = "use a smaller batch or sequence, a narrower type, or rematerialization under a \
                  memory limit";
    Err(BackendError::OutOfMemory { needed, available, remedy: remedy.to_owned() })
}

fn place_constants(plan: &Plan, slots: &mut SlotTable) -> Result<Vec<AlignedBytes>, BackendError> {
    let place = |(slot, tensor)| {
        let bytes = uploaded(tensor)?;
        slots.set(slot, bytes.start());
        Ok(bytes)
    };
    plan.constants().map(place).collect()
}

/// Memory for the results of prepare steps.
fn keep(plan: &Plan) -> Result<AlignedBytes, BackendError> {
    AlignedBytes::filled(plan.persistent_bytes.iter().sum(), 0)
}

/// Enters where the results of prepare steps lie.
fn place_kept(plan: &Plan, slots: &mut SlotTable, kept: &AlignedBytes) {
    for (slot, offset) in plan.persistent_slots() {
        slots.set(slot, kept.start().wrapping_add(offset));
    }
}

/// The bytes of a tensor.
pub(crate) fn uploaded(tensor: &Tensor) -> Result<AlignedBytes, BackendError> {
    let mut bytes = AlignedBytes::filled(tensor.bytes().len(), 0)?;
    bytes.as_mut_slice().copy_from_slice(tensor.bytes());
    Ok(bytes)
}

impl Executable for CpuExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(CpuSession::new(self)?))
    }
}

impl Session for CpuSession {
    fn plan(&self) -> &Plan {
        &self.executable.plan
    }

    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError> {
        self.call(call, |_, step| step())?;
        Ok(Box::new(Ready))
    }

    fn sample(
        &mut self,
        mut call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError> {
        let mut samples = Vec::with_capacity(protocol.samples as usize);
        let mut evictor = match protocol.cache {
            CacheState::Warm => AlignedBytes::filled(0, 0)?,
            CacheState::Cold => AlignedBytes::filled(EVICTING_BYTES, 0)?,
        };
        for sample in 0..protocol.samples {
            evictor.as_mut_slice().fill(sample as u8);
            std::hint::black_box(evictor.as_slice());
            let start = Instant::now();
            for _ in 0..protocol.calls_per_sample {
                self.call(call.again(), |_, step| step())?;
            }
            let host_ns =
                start.elapsed().as_nanos() as f64 / f64::from(protocol.calls_per_sample.max(1));
            samples.push(TimedSample { device_ns: None, host_ns, cycles: None, flags: vec![] });
        }
        Ok(samples)
    }

    fn memory(&self) -> MemoryReport {
        let own: usize = self.steps.iter().map(CompiledStep::workspace_bytes).sum();
        let constants = &self.executable.constants;
        let constants: usize = constants.iter().map(AlignedBytes::len).sum();
        MemoryReport {
            transient_bytes: self.storage.peak_bytes() as u64,
            persistent_bytes: (self.kept.len() + constants) as u64,
            state_bytes: self.executable.plan.state_bytes(Space::MAIN),
            offloaded_bytes: 0,
            workspace_bytes: (self.scratch_bytes + own) as u64,
            context_bytes: None,
        }
    }

    fn profile(
        &mut self,
        mut call: Arguments<'_>,
        calls: u32,
    ) -> Result<Vec<StepProfile>, BackendError> {
        let mut profiles = StepProfile::of_steps(self.plan(), calls);
        for _ in 0..calls {
            let origin = Instant::now();
            self.call(call.again(), |index, step| {
                let start = origin.elapsed();
                step();
                let end = origin.elapsed();
                profiles[index].start_ns.push(start.as_nanos() as f64);
                profiles[index].time_ns.push((end - start).as_nanos() as f64);
            })?;
        }
        Ok(profiles)
    }
}

/// More than the caches of common machines hold. Bytes that a larger last level keeps stay warm.
const EVICTING_BYTES: usize = 256 << 20;
