//! Memory of transient slots: one arena, or (eager) blocks allocated during the run.
//!
//! Invariant: while a step runs, every arena slot that it reads or writes has its address in the
//! slot table.

use overdrive_ir::plan::{Space, Together};
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
    OnDemand(OnDemand),
}

impl Storage {
    /// Transient memory for a plan, with the addresses of arena slots entered.
    pub(super) fn new(plan: &Plan, slots: &mut SlotTable) -> Result<Self, BackendError> {
        if plan.mode == Mode::Eager {
            return Ok(Self::OnDemand(OnDemand::new(plan)));
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
            Self::OnDemand(blocks) => blocks.before(step, slots),
        }
    }

    /// Frees the slots that step `step` was the last to touch.
    pub(super) fn after(&mut self, step: usize) {
        if let Self::OnDemand(blocks) = self {
            blocks.after(step);
        }
    }

    /// Frees the memory that outlived the last step: arena slots that hold outputs or new states.
    pub(super) fn finish(&mut self) {
        if let Self::OnDemand(blocks) = self {
            blocks.after(blocks.steps());
        }
    }

    /// The most transient bytes of any call so far.
    pub(super) fn peak_bytes(&self) -> usize {
        match self {
            Self::Arena(arena) => arena.len(),
            Self::OnDemand(blocks) => blocks.classes.peak_bytes(),
        }
    }
}

/// Slots that live together, and where while they do.
#[derive(Debug)]
struct SlotGroup {
    together: Together,
    block: Option<AlignedBytes>,
}

/// Groups of slots, with when they come and go.
#[derive(Debug)]
pub(super) struct OnDemand {
    groups: Vec<SlotGroup>,
    /// Per step, the groups that it is the first to touch.
    come: Vec<Vec<usize>>,
    /// Per step, the groups that it is the last to touch; the last entry is the end of the call.
    go: Vec<Vec<usize>>,
    classes: SizeClasses,
}

impl OnDemand {
    fn new(plan: &Plan) -> Self {
        let groups: Vec<SlotGroup> =
            plan.groups().into_iter().map(|together| SlotGroup { together, block: None }).collect();
        let end = plan.steps.len();
        let (mut come, mut go) = (vec![vec![]; end], vec![vec![]; end + 1]);
        for (index, group) in groups.iter().enumerate() {
            come[group.together.first].push(index);
            go[group.together.last].push(index);
        }
        Self { groups, come, go, classes: SizeClasses::default() }
    }

    fn steps(&self) -> usize {
        self.come.len()
    }

    fn before(&mut self, step: usize, slots: &mut SlotTable) -> Result<(), BackendError> {
        for &index in &self.come[step] {
            let group = &mut self.groups[index];
            // A call that failed half-way left its blocks behind.
            let block = match group.block.take() {
                Some(block) => block,
                None => self.classes.take(group.together.bytes)?,
            };
            for &(slot, offset) in &group.together.slots {
                slots.set(slot, block.start().wrapping_add(offset));
            }
            group.block = Some(block);
        }
        Ok(())
    }

    fn after(&mut self, step: usize) {
        for &index in &self.go[step] {
            if let Some(block) = self.groups[index].block.take() {
                self.classes.give_back(block);
            }
        }
    }
}
