//! `CpuExecutable`: a plan with everything that running it takes.

use std::sync::Arc;
use std::time::Instant;

use overdrive_ir::backend::{
    CacheState, MemoryReport, Pending, Protocol, Ready, Sample, StepProfile,
};
use overdrive_ir::plan::{Arguments, Note, Place, Prepared, StepKind};
use overdrive_ir::{BackendError, Buffer, Executable, Plan, SlotId, State, Tensor};

use super::copy::Copy;
use super::runnable::Runnable;
use super::step::compile;
use super::storage::Storage;
use crate::isa::InstructionSet;
use crate::memory::{AlignedBytes, CpuMemory, available_bytes};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A compiled graph on the CPU.
pub struct CpuExecutable {
    plan: Plan,
    pool: Arc<Pool>,
    /// One per step of the plan.
    steps: Vec<Box<dyn Runnable>>,
    /// From where the plan left results to where the caller has them.
    deliveries: Vec<Copy>,
    arguments: Arguments,
    prepared: Prepared,
    slots: SlotTable,
    storage: Storage,
    /// What outlives calls: results of prepare steps, and constants.
    kept: Vec<AlignedBytes>,
    /// In force while it runs, as it was while the steps were compiled.
    set: InstructionSet,
    has_run: bool,
}

impl std::fmt::Debug for CpuExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuExecutable({}, {} steps)", self.plan.name, self.steps.len())
    }
}

impl CpuExecutable {
    /// Compiles the steps of a plan and places its memory. `inputs` and `outputs` are the names
    /// that users see.
    ///
    /// # Errors
    /// `Unsupported` when a step asks for what this back end does not do; `OutOfMemory` when the
    /// plan needs more memory than there is.
    pub fn new(
        mut plan: Plan,
        pool: Arc<Pool>,
        inputs: &[String],
        outputs: &[String],
    ) -> Result<Self, BackendError> {
        check_memory(&plan)?;
        let steps: Vec<Box<dyn Runnable>> =
            plan.steps.iter().map(|step| compile(&plan, step)).collect::<Result<_, _>>()?;
        say_what_the_reference_does(&mut plan, &steps);
        let arguments = Arguments::new(&plan, inputs, outputs);
        let prepared = Prepared::new(&plan, &arguments.state_names());
        let deliver = |(from, home)| Copy::new(from, home, plan.slot(from).bytes());
        let deliveries = arguments.deliveries(&plan).into_iter().map(deliver).collect();
        let mut slots = SlotTable::new(arguments.slot_count());
        let kept = place_kept(&plan, &mut slots)?;
        let storage = Storage::new(&plan, &mut slots)?;
        let (set, has_run) = (InstructionSet::in_force(), false);
        Ok(Self {
            plan,
            pool,
            steps,
            deliveries,
            arguments,
            prepared,
            slots,
            storage,
            kept,
            set,
            has_run,
        })
    }

    /// One call; `observe` is given each step that is not skipped, by index, and runs it.
    fn call(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
        mut observe: impl FnMut(usize, &mut dyn FnMut()),
    ) -> Result<(), BackendError> {
        self.set.during(|| self.call_in_force(state, inputs, outputs, &mut observe))
    }

    fn call_in_force(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
        observe: &mut dyn FnMut(usize, &mut dyn FnMut()),
    ) -> Result<(), BackendError> {
        let slots = &mut self.slots;
        self.arguments
            .enter::<CpuMemory>(state, inputs, outputs, |slot, start| slots.set(slot, start))?;
        for (index, step) in self.steps.iter().enumerate() {
            self.storage.before(index, &mut self.slots)?;
            let skip = self.plan.steps[index].prepare
                && !self.prepared.is_stale(index, self.arguments.stamps());
            if !skip {
                let (pool, slots) = (&self.pool, &self.slots);
                observe(index, &mut || step.run(pool, slots));
            }
            self.storage.after(index);
        }
        self.deliveries.iter().for_each(|copy| copy.run(&self.pool, &self.slots));
        self.storage.finish();
        if !self.has_run {
            // A worker that came late to the first call would otherwise find its scratch too small
            // in the second.
            self.pool.level_scratch();
            self.has_run = true;
        }
        Ok(())
    }
}

/// Kernels that do not know the element types of their step leave it to the reference, as the plan
/// then says.
fn say_what_the_reference_does(plan: &mut Plan, steps: &[Box<dyn Runnable>]) {
    for (step, compiled) in plan.steps.iter_mut().zip(steps) {
        let StepKind::Kernel(call) = &step.kind else { continue };
        if compiled.is_reference() {
            step.kind = StepKind::Host(call.clone());
            let (what, scope) = (step.name.clone(), step.scope.clone());
            let reason = "its kernel does not take these types: the f64 reference runs on the host"
                .to_owned();
            plan.notes.push(Note::Declined { what, scope, reason });
        }
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

/// Places constants and the persistent arena.
fn place_kept(plan: &Plan, slots: &mut SlotTable) -> Result<Vec<AlignedBytes>, BackendError> {
    let persistent = AlignedBytes::filled(plan.persistent_bytes.iter().sum(), 0)?;
    let mut kept: Vec<AlignedBytes> = Vec::new();
    for (index, slot) in plan.slots.iter().enumerate() {
        let id = SlotId(index as u32);
        match &slot.place {
            Place::Persistent { offset, .. } => {
                slots.set(id, persistent.start().wrapping_add(*offset))
            }
            Place::Constant(tensor) => {
                let bytes = uploaded(tensor)?;
                slots.set(id, bytes.start());
                kept.push(bytes);
            }
            Place::Input(_) | Place::Output(_) | Place::State(_) | Place::Arena { .. } => {}
        }
    }
    kept.push(persistent);
    Ok(kept)
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

    fn run(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
    ) -> Result<Box<dyn Pending>, BackendError> {
        self.call(state, inputs, outputs, |_, step| step())?;
        Ok(Box::new(Ready))
    }

    fn sample(
        &mut self,
        state: &mut State,
        inputs: &[Buffer],
        outputs: &mut [Buffer],
        protocol: Protocol,
    ) -> Result<Vec<Sample>, BackendError> {
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
                self.call(state, inputs, outputs, |_, step| step())?;
            }
            let host_ns =
                start.elapsed().as_nanos() as f64 / f64::from(protocol.calls_per_sample.max(1));
            samples.push(Sample { device_ns: None, host_ns, cycles: None, flags: vec![] });
        }
        Ok(samples)
    }

    fn memory(&self) -> MemoryReport {
        let own: usize = self.steps.iter().map(|step| step.workspace_bytes()).sum();
        MemoryReport {
            transient_bytes: self.storage.peak_bytes() as u64,
            persistent_bytes: self.kept.iter().map(|bytes| bytes.len() as u64).sum(),
            state_bytes: self.arguments.state_bytes() as u64,
            workspace_bytes: (self.pool.scratch_bytes() + own) as u64,
            context_bytes: None,
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
            let origin = Instant::now();
            self.call(state, inputs, outputs, |index, step| {
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

/// More than the caches of common machines hold. What a larger last level keeps stays warm.
const EVICTING_BYTES: usize = 256 << 20;
