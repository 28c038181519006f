//! Memory of transient slots: one arena, or (eager) blocks allocated during the run.
//!
//! Invariant: while a step runs, every arena slot that it reads or writes has its address in the
//! slot table.

use overdrive_ir::plan::{OnDemand, Space};
use overdrive_ir::{BackendError, Mode, Plan};

use super::size_classes::SizeClasses;
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;

/// Transient memory of an executable.
#[derive(Debug)]
pub(super) enum Storage {
    /// Each slot at the offset that the plan gave it.
    Arena(AlignedBytes),
    /// Each group of slots in a block from its first write to its last use.
    OnDemand(OnDemand<AlignedBytes>, SizeClasses),
}

impl Storage {
    /// Transient memory for a plan, with the addresses of arena slots entered.
    pub(super) fn new(plan: &Plan, slots: &mut SlotTable) -> Result<Self, BackendError> {
        if plan.mode == Mode::Eager {
            return Ok(Self::OnDemand(OnDemand::new(plan), SizeClasses::default()));
        }
        let arena = AlignedBytes::filled(plan.arena_bytes.iter().sum(), 0)?;
        // On a processor all memory spaces are one.
        let mut start = arena.start();
        for (space, &bytes) in plan.arena_bytes.iter().enumerate() {
            for (id, offset) in plan.arena_slots(Space(space as u8)) {
                slots.set(id, start.wrapping_add(offset));
            }
            start = start.wrapping_add(bytes);
        }
        Ok(Self::Arena(arena))
    }

    /// Makes the slots that step `step` is the first to touch.
    pub(super) fn before(
        &mut self,
        step: usize,
        slots: &mut SlotTable,
    ) -> Result<(), BackendError> {
        match self {
            Self::Arena(_) => Ok(()),
            Self::OnDemand(groups, blocks) => groups.before(
                step,
                |bytes| blocks.take(bytes),
                |slot, block, offset| slots.set(slot, block.start().wrapping_add(offset)),
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

    /// The most transient bytes of any call so far.
    pub(super) fn peak_bytes(&self) -> usize {
        match self {
            Self::Arena(arena) => arena.len(),
            Self::OnDemand(_, blocks) => blocks.peak_bytes(),
        }
    }
}
