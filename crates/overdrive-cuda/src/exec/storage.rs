//! Memory of transient slots: one arena, or (eager) blocks of the pool allocated during the call.
//!
//! Invariant: while a step is enqueued, every arena slot that it reads or writes has its address in
//! the table.

use crate::launch::Addresses;
use crate::memory::{BLOCK, DeviceBytes, SpaceBytes};
use crate::{Device, Error};
use overdrive_ir::plan::{OnDemand, Space};
use overdrive_ir::{Mode, Plan};
use std::sync::Arc;

/// Transient memory of an executable.
#[derive(Debug)]
pub(super) enum Storage {
    /// Each slot at the offset that the plan gave it, in the arena of its memory space.
    Arenas(Vec<SpaceBytes>),
    /// Each group of slots in a block from its first write to its last use.
    OnDemand(OnDemand<DeviceBytes>, Blocks),
}

impl Storage {
    /// Transient memory for a plan, with the addresses of arena slots entered. `main` is the arena
    /// of main memory if other ranks write into it.
    pub(super) fn new(
        device: &Arc<Device>,
        plan: &Plan,
        addresses: &mut Addresses,
        main: Option<DeviceBytes>,
    ) -> Result<Self, Error> {
        if plan.mode == Mode::Eager {
            let blocks = Blocks { device: Arc::clone(device), in_use: 0, peak: 0 };
            return Ok(Self::OnDemand(OnDemand::new(plan), blocks));
        }
        Ok(Self::Arenas(arenas(device, plan, addresses, main)?))
    }

    /// Makes the slots that step `step` is the first to touch.
    pub(super) fn before(&mut self, step: usize, addresses: &mut Addresses) -> Result<(), Error> {
        match self {
            Self::Arenas(_) => Ok(()),
            Self::OnDemand(groups, blocks) => groups.before(
                step,
                |bytes| blocks.take(bytes),
                |slot, block, offset| addresses.set(slot, block.address() + offset as u64),
            ),
        }
    }

    /// Frees the slots that step `step` was the last to touch; the number of steps means the end of
    /// the call.
    pub(super) fn after(&mut self, step: usize) {
        if let Self::OnDemand(groups, blocks) = self {
            groups.after(step, |block| blocks.give_back(block));
        }
    }

    /// The most transient bytes of device memory of any call so far, in the order of the stream.
    pub(super) fn peak_bytes(&self) -> usize {
        match self {
            Self::Arenas(arenas) => arenas[0].len(),
            Self::OnDemand(_, blocks) => blocks.peak,
        }
    }
}

/// An arena in each memory space, with the transient slots of a plan in it. `main` is that of main
/// memory if it is there already.
pub(super) fn arenas(
    device: &Arc<Device>,
    plan: &Plan,
    addresses: &mut Addresses,
    mut main: Option<DeviceBytes>,
) -> Result<Vec<SpaceBytes>, Error> {
    let mut arenas = Vec::with_capacity(plan.arena_bytes.len());
    for (space, &bytes) in plan.arena_bytes.iter().enumerate() {
        let space = Space(space as u8);
        let arena = match main.take_if(|_| space == Space::MAIN) {
            Some(main) => SpaceBytes::Device(main),
            None => SpaceBytes::new(device, space, bytes)?,
        };
        for (slot, offset) in plan.arena_slots(space) {
            addresses.set(slot, arena.address() + offset as u64);
        }
        arenas.push(arena);
    }
    Ok(arenas)
}

/// Device memory for blocks that come and go.
#[derive(Debug)]
pub(super) struct Blocks {
    device: Arc<Device>,
    in_use: usize,
    peak: usize,
}

impl Blocks {
    fn take(&mut self, bytes: usize) -> Result<DeviceBytes, Error> {
        let block = DeviceBytes::new(&self.device, bytes)?;
        self.in_use += bytes.next_multiple_of(BLOCK);
        self.peak = self.peak.max(self.in_use);
        Ok(block)
    }

    fn give_back(&mut self, block: DeviceBytes) {
        self.in_use -= block.len().next_multiple_of(BLOCK);
    }
}
