//! Placing buffers in the arena: largest first, each at the lowest offset that is free during its
//! life.
//!
//! "Greedy by size" of Pisarchyk and Lee, "Efficient memory management for deep neural net
//! inference", 2020: within a few percent of the live-bytes bound on real models. Invariant:
//! buffers whose lives overlap never share bytes.

use overdrive_ir::plan::{Place, Plan, StepKind};
use std::ops::RangeInclusive;

/// Gives every arena and persistent slot its offset, and the plan its sizes; again where a back end
/// has made one step of several, since what the step touches then lives at the same time.
pub fn place(plan: &mut Plan) {
    let lives = lives(plan);
    let aligned = |bytes: usize| bytes.next_multiple_of(Plan::ALIGNMENT);
    let mut order: Vec<usize> = (0..plan.slots.len())
        .filter(|&i| matches!(plan.slots[i].place, Place::Arena { .. }) && lives[i].is_some())
        .collect();
    order.sort_by_key(|&i| std::cmp::Reverse((plan.slots[i].bytes(), usize::MAX - i)));
    let mut placed: Vec<(usize, usize, RangeInclusive<usize>)> = Vec::new();
    let mut peak = 0;
    for i in order {
        let (bytes, life) =
            (aligned(plan.slots[i].bytes()), lives[i].clone().expect("filtered above"));
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(_, _, other)| other.start() <= life.end() && life.start() <= other.end())
            .map(|(offset, bytes, _)| (*offset, offset + bytes))
            .collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, end) in busy {
            if start >= offset + bytes {
                break;
            }
            offset = offset.max(end);
        }
        peak = peak.max(offset + bytes);
        placed.push((offset, bytes, life));
        plan.slots[i].place = Place::Arena { space: Default::default(), offset };
    }
    plan.arena_bytes = vec![peak];
    plan.live_bytes = (0..plan.steps.len())
        .map(|step| {
            placed.iter().filter(|(_, _, life)| life.contains(&step)).map(|(_, b, _)| b).sum()
        })
        .max()
        .unwrap_or(0);
    let mut persistent = 0;
    for slot in &mut plan.slots {
        if let Place::Persistent { space, .. } = slot.place {
            slot.place = Place::Persistent { space, offset: persistent };
            persistent += aligned(slot.bytes());
        }
    }
    plan.persistent_bytes = vec![persistent];
}

/// First write to last use of each slot, in steps; `None` for slots that nothing touches.
fn lives(plan: &Plan) -> Vec<Option<RangeInclusive<usize>>> {
    let mut lives: Vec<Option<RangeInclusive<usize>>> = vec![None; plan.slots.len()];
    let mut touch = |slot: usize, step: usize| {
        lives[slot] = Some(match &lives[slot] {
            None => step..=step,
            Some(life) => *life.start()..=step,
        });
    };
    for (index, step) in plan.steps.iter().enumerate() {
        step.reads.iter().chain(&step.writes).for_each(|s| touch(s.0 as usize, index));
        let packs = matches!(step.kind, StepKind::Pack { .. } | StepKind::PackFilter(_));
        debug_assert!(!packs || step.prepare, "packing is preparation");
    }
    let end = plan.steps.len().saturating_sub(1);
    let copied_at_the_end = plan.updates.iter().map(|u| u.2);
    copied_at_the_end.for_each(|s| touch(s.0 as usize, end));
    lives
}
