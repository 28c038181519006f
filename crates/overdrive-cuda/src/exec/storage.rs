//! Memory of transient slots: one arena, or (eager) blocks of the pool allocated during the call.
//!
//! Invariant: while a step is enqueued, every arena slot that it reads or writes has its address in
//! the table.

use crate::launch::Addresses;
use crate::memory::{BLOCK, DeviceBytes, SpaceBytes};
use crate::{Device, Error};
use overdrive_ir::plan::{Space, Together};
use overdrive_ir::{Mode, Plan};
use std::sync::Arc;

/// Transient memory of an executable.
#[derive(Debug)]
pub(super) enum Storage {
    /// Each slot at the offset that the plan gave it, in the arena of its memory space.
    Arenas(Vec<SpaceBytes>),
    /// Each group of slots in a block from its first write to its last use.
    OnDemand(OnDemand),
}

impl Storage {
    /// Transient memory for a plan, with the addresses of arena slots entered.
    pub(super) fn new(
        device: &Arc<Device>,
        plan: &Plan,
        addresses: &mut Addresses,
    ) -> Result<Self, Error> {
        if plan.mode == Mode::Eager {
            return Ok(Self::OnDemand(OnDemand::new(device, plan)));
        }
        Ok(Self::Arenas(arenas(device, plan, addresses)?))
    }

    /// Makes the slots that step `step` is the first to touch.
    pub(super) fn before(&mut self, step: usize, addresses: &mut Addresses) -> Result<(), Error> {
        match self {
            Self::Arenas(_) => Ok(()),
            Self::OnDemand(blocks) => blocks.before(step, addresses),
        }
    }

    /// Frees the slots that step `step` was the last to touch; the number of steps means the end of
    /// the call.
    pub(super) fn after(&mut self, step: usize) {
        if let Self::OnDemand(blocks) = self {
            blocks.after(step);
        }
    }

    /// The most transient bytes of device memory of any call so far, in the order of the stream.
    pub(super) fn peak_bytes(&self) -> usize {
        match self {
            Self::Arenas(arenas) => arenas[0].len(),
            Self::OnDemand(blocks) => blocks.peak,
        }
    }
}

/// An arena in each memory space, with the transient slots of a plan in it.
pub(super) fn arenas(
    device: &Arc<Device>,
    plan: &Plan,
    addresses: &mut Addresses,
) -> Result<Vec<SpaceBytes>, Error> {
    let mut arenas = Vec::with_capacity(plan.arena_bytes.len());
    for (space, &bytes) in plan.arena_bytes.iter().enumerate() {
        let space = Space(space as u8);
        let arena = SpaceBytes::new(device, space, bytes)?;
        for (slot, offset) in plan.arena_slots(space) {
            addresses.set(slot, arena.address() + offset as u64);
        }
        arenas.push(arena);
    }
    Ok(arenas)
}

/// Groups of slots, with when they come and go.
#[derive(Debug)]
pub(super) struct OnDemand {
    device: Arc<Device>,
    groups: Vec<(Together, Option<DeviceBytes>)>,
    /// Per step, the groups that it is the first to touch.
    come: Vec<Vec<usize>>,
    /// Per step, the groups that it is the last to touch; the last entry is the end of the call.
    go: Vec<Vec<usize>>,
    in_use: usize,
    peak: usize,
}

impl OnDemand {
    fn new(device: &Arc<Device>, plan: &Plan) -> Self {
        let groups = plan.groups();
        let end = plan.steps.len();
        let (mut come, mut go) = (vec![vec![]; end + 1], vec![vec![]; end + 1]);
        for (index, group) in groups.iter().enumerate() {
            come[group.first].push(index);
            go[group.last].push(index);
        }
        let groups = groups.into_iter().map(|group| (group, None)).collect();
        Self { device: Arc::clone(device), groups, come, go, in_use: 0, peak: 0 }
    }

    fn before(&mut self, step: usize, addresses: &mut Addresses) -> Result<(), Error> {
        for &index in &self.come[step] {
            let (group, block) = &mut self.groups[index];
            // A call that failed half-way left its blocks behind.
            if block.is_none() {
                *block = Some(DeviceBytes::new(&self.device, group.bytes)?);
                self.in_use += group.bytes.next_multiple_of(BLOCK);
                self.peak = self.peak.max(self.in_use);
            }
            let start = block.as_ref().expect("taken above").address();
            for &(slot, offset) in &group.slots {
                addresses.set(slot, start + offset as u64);
            }
        }
        Ok(())
    }

    fn after(&mut self, step: usize) {
        for &index in &self.go[step] {
            let (group, block) = &mut self.groups[index];
            if block.take().is_some() {
                self.in_use -= group.bytes.next_multiple_of(BLOCK);
            }
        }
    }
}
