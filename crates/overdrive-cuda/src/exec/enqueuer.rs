//! `Enqueuer`: the compiled steps of a plan with the memory that they work in, enqueued step by
//! step.

use super::compiled_step::{CompiledStep, SlotCopy};
use super::queues::Queues;
use super::storage::Storage;
use crate::launch::{Addresses, Launch};
use crate::memory::DeviceBytes;
use crate::nccl::PlanRanks;
use crate::{Device, Error};
use cudarc::driver::CudaStream;
use overdrive_ir::{BackendError, Plan};
use std::sync::Arc;

/// Device, plan and steps of a session, from which its calls are enqueued.
pub(super) struct Enqueuer {
    pub(super) device: Arc<Device>,
    pub(super) plan: Arc<Plan>,
    /// The other ranks, where steps meet some.
    pub(super) ranks: Option<Arc<PlanRanks>>,
    /// One per step of the plan.
    pub(super) tasks: Vec<CompiledStep>,
    /// From where the plan left results to where the caller has them.
    pub(super) deliveries: Vec<SlotCopy>,
    pub(super) addresses: Addresses,
    pub(super) storage: Storage,
    pub(super) queues: Queues,
    pub(super) constants: Arc<[DeviceBytes]>,
    /// Results of prepare steps.
    pub(super) derived: Arc<DeviceBytes>,
    pub(super) has_run: bool,
}

/// A step about to be enqueued on a stream, and after.
pub(super) enum Moment<'a> {
    Before(usize, &'a CudaStream),
    After(&'a CudaStream),
}

impl Enqueuer {
    /// Memory that outlives calls: results of prepare steps, and constants.
    pub(super) fn kept(&self) -> impl Iterator<Item = &DeviceBytes> {
        self.constants.iter().chain([&*self.derived])
    }

    /// True where a step waits for the host in every call.
    pub(super) fn has_host_steps(&self) -> bool {
        self.tasks
            .iter()
            .zip(&self.plan.steps)
            .any(|(t, s)| matches!(t, CompiledStep::Host(_)) && !s.prepare)
    }

    /// The name of a step in errors.
    pub(super) fn during(&self, index: usize) -> String {
        let step = &self.plan.steps[index];
        format!("step {index} `{}` at {}", step.name, step.scope)
    }

    /// Waits after each step of the first call, so that a fault has the name of its step.
    pub(super) fn settle(&self, stream: &CudaStream) -> Result<(), Error> {
        match &self.ranks {
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
            let mut step = |work: &mut Self| {
                work.storage.before(index, &mut work.addresses)?;
                let (queues, step) = (&work.queues, &work.plan.steps[index]);
                let stream = queues.of(step);
                queues.before(step)?;
                observe(Moment::Before(index, stream))?;
                work.tasks[index].run(&work.device, stream, &work.addresses)?;
                observe(Moment::After(stream))?;
                queues.after(step)?;
                work.settle(stream)
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
}
