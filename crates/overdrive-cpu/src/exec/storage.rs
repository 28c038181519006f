//! Where transient slots live: in one arena, or (eager) in blocks taken as the run goes.
//!
//! Invariant: while a step runs, every arena slot that it reads or writes has its address in the slot table.

use std::collections::BTreeMap;

use overdrive_ir::plan::Place;
use overdrive_ir::{BackendError, Mode, Plan, SlotId};

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
        for (id, offset) in arena_slots(plan) {
            slots.set(id, arena.start().wrapping_add(offset));
        }
        Ok(Self::Arena(arena))
    }

    /// Makes the slots that step `step` is the first to touch.
    pub(super) fn before(&mut self, step: usize, slots: &mut SlotTable) -> Result<(), BackendError> {
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

    /// Frees what outlived the last step: arena slots that hold outputs or new states.
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

/// Arena slots and their offsets.
fn arena_slots(plan: &Plan) -> impl Iterator<Item = (SlotId, usize)> {
    plan.slots.iter().enumerate().filter_map(|(index, slot)| match slot.place {
        Place::Arena { offset, .. } => Some((SlotId(index as u32), offset)),
        _ => None,
    })
}

/// Slots that share bytes while they live: an update in place, a part of a whole.
#[derive(Debug)]
struct Group {
    /// Each with its offset in the block.
    slots: Vec<(SlotId, usize)>,
    bytes: usize,
    first: usize,
    last: usize,
    block: Option<AlignedBytes>,
}

/// Groups of slots, with when they come and go.
#[derive(Debug)]
pub(super) struct OnDemand {
    groups: Vec<Group>,
    /// Per step, the groups that it is the first to touch.
    come: Vec<Vec<usize>>,
    /// Per step, the groups that it is the last to touch; the last entry is the end of the call.
    go: Vec<Vec<usize>>,
    classes: SizeClasses,
}

impl OnDemand {
    fn new(plan: &Plan) -> Self {
        let groups = groups(plan);
        let end = plan.steps.len();
        let (mut come, mut go) = (vec![vec![]; end], vec![vec![]; end + 1]);
        for (index, group) in groups.iter().enumerate() {
            come[group.first].push(index);
            go[group.last].push(index);
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
                None => self.classes.take(group.bytes)?,
            };
            for &(slot, offset) in &group.slots {
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

/// First and last step that touches each arena slot; a slot that holds a result lives until the end.
fn lives(plan: &Plan) -> BTreeMap<SlotId, (usize, usize)> {
    let mut lives: BTreeMap<SlotId, (usize, usize)> = BTreeMap::new();
    let mut touch = |slot: SlotId, step: usize| {
        if matches!(plan.slot(slot).place, Place::Arena { .. }) {
            let life = lives.entry(slot).or_insert((step, step));
            life.1 = life.1.max(step);
        }
    };
    for (step, touched) in plan.steps.iter().enumerate() {
        touched.reads.iter().chain(&touched.writes).for_each(|&slot| touch(slot, step));
    }
    let results = plan.outputs.iter().copied().chain(plan.updates.iter().map(|update| update.2));
    results.for_each(|slot| touch(slot, plan.steps.len()));
    lives
}

/// The plan lets slots overlap in the arena at the same time only on purpose, so such slots stay together.
fn groups(plan: &Plan) -> Vec<Group> {
    let lives = lives(plan);
    let mut spans: Vec<(usize, usize, SlotId)> = arena_slots(plan)
        .filter(|(id, _)| lives.contains_key(id))
        .map(|(id, offset)| (offset, offset + plan.slot(id).bytes(), id))
        .collect();
    spans.sort_unstable();
    let mut groups: Vec<(usize, usize, Group)> = Vec::new();
    for (start, end, id) in spans {
        let (mut low, mut high) = (start, end);
        let (mut first, mut last) = lives[&id];
        let mut members = vec![(id, start)];
        // Merging may make the group overlap another that was apart until now: start over until none does.
        while let Some(at) =
            groups.iter().position(|(s, e, g)| *s < high && low < *e && g.first <= last && first <= g.last)
        {
            let (s, e, group) = groups.swap_remove(at);
            (low, high) = (low.min(s), high.max(e));
            (first, last) = (first.min(group.first), last.max(group.last));
            members.extend(group.slots);
        }
        groups.push((low, high, Group { slots: members, bytes: 0, first, last, block: None }));
    }
    let relative = |(low, high, mut group): (usize, usize, Group)| {
        group.slots.iter_mut().for_each(|(_, offset)| *offset -= low);
        group.bytes = high - low;
        group
    };
    groups.into_iter().map(relative).collect()
}
