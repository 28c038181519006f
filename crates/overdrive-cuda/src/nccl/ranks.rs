//! `Ranks`: a device as one rank of several. Holds the groups that it is in, and waits for work
//! that other ranks take part in.

use super::group::{NcclGroup, late};
use crate::{Device, Error};
use cudarc::driver::CudaEvent;
use overdrive_ir::plan::{Plan, StepKind};
use overdrive_ir::{Communicator, Mesh};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A wait begins with looks one after another, so that a short one costs nothing more.
const EAGER: Duration = Duration::from_micros(200);

/// Between two looks after that.
const LOOK: Duration = Duration::from_micros(50);

/// Between two looks at the other ranks.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// A rank on a device.
#[derive(Debug)]
pub(crate) struct Ranks {
    device: Arc<Device>,
    communicator: Arc<dyn Communicator>,
    /// By their members.
    groups: Mutex<BTreeMap<Vec<usize>, Arc<NcclGroup>>>,
}

impl Ranks {
    pub(crate) fn new(device: &Arc<Device>, communicator: Arc<dyn Communicator>) -> Self {
        Self { device: Arc::clone(device), communicator, groups: Mutex::default() }
    }

    pub(crate) fn communicator(&self) -> &dyn Communicator {
        self.communicator.as_ref()
    }

    /// Joins the groups of a plan. The order of the plan is the same on all ranks.
    ///
    /// # Errors
    /// Without NCCL, and when another rank fails meanwhile.
    pub(crate) fn meet(&self, plan: &Plan) -> Result<(), Error> {
        for step in &plan.steps {
            if let StepKind::CollectiveStart { prim } = &step.kind {
                self.group(&prim.channel().expect("collectives have a channel").group)?;
            }
        }
        Ok(())
    }

    /// This rank's group of these axes.
    pub(super) fn group(&self, axes: &Mesh) -> Result<Arc<NcclGroup>, Error> {
        let members = self.communicator.mesh().group_of(self.communicator.rank(), axes);
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&members) {
            return Ok(Arc::clone(group));
        }
        let group = Arc::new(NcclGroup::meet(&self.device, &self.communicator, &members)?);
        groups.insert(members, Arc::clone(&group));
        Ok(group)
    }

    /// Waits for an event that may come after work of other ranks.
    ///
    /// # Errors
    /// When one of them fails: nothing of NCCL's is under way any more then.
    pub(crate) fn wait(&self, event: &CudaEvent) -> Result<(), Error> {
        let waited = self.wait_for(event);
        if waited.is_err() {
            let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            groups.values().for_each(|group| group.abort());
        }
        waited
    }

    fn wait_for(&self, event: &CudaEvent) -> Result<(), Error> {
        self.device.context().bind_to_thread()?;
        let start = Instant::now();
        let mut looked_around = start;
        while !event.try_is_complete()? {
            let now = Instant::now();
            if now - start < EAGER {
                std::hint::spin_loop();
                continue;
            }
            if now - looked_around >= LOOK_AROUND {
                looked_around = now;
                self.communicator.check()?;
                let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
                groups.values().try_for_each(|group| group.check())?;
            }
            if now - start >= self.communicator.patience() {
                return Err(late(self.communicator.as_ref(), "the end of a call"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}
