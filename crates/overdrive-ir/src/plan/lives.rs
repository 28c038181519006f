//! Lifetimes of arena slots, for back ends that allocate during a call (eager mode).
//!
//! Invariant: two groups that live at the same time share no byte of the arena.

use super::{Plan, SlotId, SlotPlace, Space};
use crate::Tensor;
use std::collections::BTreeMap;

/// Arena slots that share bytes while they live, an update in place, say, or a part of a whole: one
/// allocation.
#[derive(Clone, PartialEq, Debug)]
pub struct Together {
    /// Each with its offset in the allocation, in bytes.
    pub slots: Vec<(SlotId, usize)>,
    /// Size of the allocation.
    pub bytes: usize,
    /// The first step that touches one of them.
    pub first: usize,
    /// The last one; the number of steps for what lives until the end of the call.
    pub last: usize,
}

impl Plan {
    /// Slots of the arena of a memory space, and their offsets in bytes.
    pub fn arena_slots(&self, of: Space) -> impl Iterator<Item = (SlotId, usize)> {
        self.slots.iter().enumerate().filter_map(move |(index, slot)| match slot.place {
            SlotPlace::Arena { space, offset } if space == of => {
                Some((SlotId(index as u32), offset))
            }
            _ => None,
        })
    }

    /// Slots of the persistent arena, and their offsets in bytes.
    pub fn persistent_slots(&self) -> impl Iterator<Item = (SlotId, usize)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match slot.place {
            SlotPlace::Persistent { offset, .. } => Some((SlotId(index as u32), offset)),
            _ => None,
        })
    }

    /// Slots of constants, and their values.
    pub fn constants(&self) -> impl Iterator<Item = (SlotId, &Tensor)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.place {
            SlotPlace::Constant(value) => Some((SlotId(index as u32), value)),
            _ => None,
        })
    }

    /// Slots of the arena of main memory. The plan lets slots overlap in the arena at the same time
    /// only on purpose, so such slots stay together.
    pub fn groups(&self) -> Vec<Together> {
        let lives = self.lives();
        let mut spans: Vec<(usize, usize, SlotId)> = self
            .arena_slots(Space::MAIN)
            .filter(|(id, _)| lives.contains_key(id))
            .map(|(id, offset)| (offset, offset + self.slot(id).bytes(), id))
            .collect();
        spans.sort_unstable();
        let mut groups: Vec<(usize, usize, Together)> = Vec::new();
        for (start, end, id) in spans {
            let (mut low, mut high) = (start, end);
            let (mut first, mut last) = lives[&id];
            let mut slots = vec![(id, start)];
            // Merging may make the group overlap another that was apart until now: start over until
            // none does.
            while let Some(at) = groups
                .iter()
                .position(|(s, e, g)| *s < high && low < *e && g.first <= last && first <= g.last)
            {
                let (s, e, group) = groups.swap_remove(at);
                (low, high) = (low.min(s), high.max(e));
                (first, last) = (first.min(group.first), last.max(group.last));
                slots.extend(group.slots);
            }
            groups.push((low, high, Together { slots, bytes: 0, first, last }));
        }
        let relative = |(low, high, mut group): (usize, usize, Together)| {
            group.slots.iter_mut().for_each(|(_, offset)| *offset -= low);
            group.bytes = high - low;
            group
        };
        groups.into_iter().map(relative).collect()
    }

    /// First and last step that touches each arena slot; a slot that holds a result lives until the
    /// end.
    fn lives(&self) -> BTreeMap<SlotId, (usize, usize)> {
        let mut lives: BTreeMap<SlotId, (usize, usize)> = BTreeMap::new();
        let mut touch = |slot: SlotId, step: usize| {
            if matches!(self.slot(slot).place, SlotPlace::Arena { .. }) {
                let life = lives.entry(slot).or_insert((step, step));
                life.1 = life.1.max(step);
            }
        };
        for (step, touched) in self.steps.iter().enumerate() {
            touched.reads.iter().chain(&touched.writes).for_each(|&slot| touch(slot, step));
        }
        let results =
            self.outputs.iter().copied().chain(self.updates.iter().map(|update| update.2));
        results.for_each(|slot| touch(slot, self.steps.len()));
        lives
    }
}
