//! `Ranks`: a device as one rank of several. Holds the groups that it is in, and waits for work
//! that other ranks take part in.

use super::group::{NcclGroup, late};
use crate::peers::{ExportedBytes, PeerGroup};
use crate::{Device, Error};
use cudarc::driver::CudaEvent;
use overdrive_ir::{Choice, Communicator, Mesh};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    groups: Mutex<BTreeMap<Vec<usize>, Arc<Group>>>,
    /// Memory that other ranks have been shown. It lasts as long as the ranks, since another rank
    /// may end its session later than this one.
    blocks: Mutex<Vec<Arc<ExportedBytes>>>,
}

/// The ways to the other members of a group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) nccl: Arc<NcclGroup>,
    /// Copies, or in words why there are none.
    pub(super) peers: Result<Arc<PeerGroup>, String>,
    /// The timed ways of collectives, the same on all members.
    pub(super) choices: Mutex<BTreeMap<String, Choice>>,
}

impl Group {
    fn check(&self) -> Result<(), Error> {
        self.nccl.check()?;
        self.peers.as_ref().map_or(Ok(()), |peers| peers.check())
    }
}

impl Ranks {
    pub(crate) fn new(device: &Arc<Device>, communicator: Arc<dyn Communicator>) -> Self {
        let (groups, blocks) = (Mutex::default(), Mutex::default());
        Self { device: Arc::clone(device), communicator, groups, blocks }
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn communicator(&self) -> &dyn Communicator {
        self.communicator.as_ref()
    }

    /// This rank's group of these axes, which all members join at the same time.
    ///
    /// # Errors
    /// Without NCCL, and when another rank fails meanwhile.
    pub(super) fn group(&self, axes: &Mesh) -> Result<Arc<Group>, Error> {
        let members = self.communicator.mesh().group_of(self.communicator.rank(), axes);
        let mut groups = self.groups();
        if let Some(group) = groups.get(&members) {
            return Ok(Arc::clone(group));
        }
        let nccl = Arc::new(NcclGroup::meet(&self.device, &self.communicator, &members)?);
        let peers = PeerGroup::meet(&self.device, &self.communicator, &members)?.map(Arc::new);
        let group = Arc::new(Group { nccl, peers, choices: Mutex::default() });
        groups.insert(members, Arc::clone(&group));
        Ok(group)
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<Vec<usize>, Arc<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least so many bytes that no session has.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no more.
    pub(super) fn block(&self, bytes: usize) -> Result<Arc<ExportedBytes>, Error> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |block: &&Arc<ExportedBytes>| Arc::strong_count(block) == 1 && block.len() >= bytes;
        if let Some(free) = blocks.iter().filter(fits).min_by_key(|block| block.len()) {
            return Ok(Arc::clone(free));
        }
        let block = Arc::new(ExportedBytes::new(&self.device, bytes)?);
        blocks.push(Arc::clone(&block));
        Ok(block)
    }

    /// Waits for an event that may come after work of other ranks.
    ///
    /// # Errors
    /// When one of them fails: no collective is under way any more then.
    pub(super) fn wait(&self, event: &CudaEvent) -> Result<(), Error> {
        let waited = self.wait_for(event);
        if waited.is_err() {
            self.abort();
        }
        waited
    }

    /// Ends what waits for other ranks; no later collective succeeds.
    pub(super) fn abort(&self) {
        let groups = self.groups();
        // At the same time: work of NCCL's may wait behind copies, and copies behind it.
        thread::scope(|scope| {
            for peers in groups.values().filter_map(|group| group.peers.as_ref().ok()) {
                scope.spawn(|| peers.abort());
            }
            groups.values().for_each(|group| group.nccl.abort());
        });
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
                self.groups().values().try_for_each(|group| group.check())?;
            }
            if now - start >= self.communicator.patience() {
                return Err(late(self.communicator.as_ref(), "the end of a call"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Ranks {
    /// If copies were ended early, another rank may still write into blocks of this one. They then
    /// stay until the process ends.
    fn drop(&mut self) {
        let groups = self.groups();
        let peers = groups.values().filter_map(|group| group.peers.as_ref().ok());
        // All of them end, whether the one before ended well or not.
        let ended: Vec<bool> = peers.map(|peers| peers.end()).collect();
        let is_well = ended.iter().all(|is_well| *is_well);
        drop(groups);
        if !is_well {
            let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
            blocks.drain(..).for_each(std::mem::forget);
        }
    }
}
