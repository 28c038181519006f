//! `PartialOrder`: which steps have surely ended when another begins.
//!
//! Steps of one stream run in the order of the plan. A step begins after those whose events it
//! waits for. A call begins when the one before it has ended. Nothing else orders steps, not even
//! their positions in the plan. Kept as vector clocks: for each step, how many steps of each stream
//! it comes after. Invariant: it only orders earlier steps before later ones.

use super::{Plan, SlotId, SlotPlace};
use std::collections::HashMap;

/// The order of the steps of a plan.
#[derive(Clone, Debug)]
pub struct PartialOrder {
    steps: Vec<At>,
    streams: usize,
}

/// One step.
#[derive(Clone, Debug)]
struct At {
    stream: usize,
    /// Its number on its stream, from 1; 0 for preparation, which ends before a call begins.
    number: u32,
    /// Per stream, the number of the last step that has ended.
    ended: Vec<u32>,
}

/// When a slot is in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveRange {
    /// Per stream, the number of the last step that has ended before any use.
    begun: Vec<u32>,
    /// Per stream, the number of the last step that uses it.
    ended: Vec<u32>,
    /// First step of the plan that uses it.
    pub first: usize,
    /// Last step of the plan that uses it.
    pub last: usize,
}

impl PartialOrder {
    /// That of a plan. An event that nothing records orders nothing.
    pub fn new(plan: &Plan) -> Self {
        let streams = plan.steps.iter().map(|step| usize::from(step.stream) + 1).max().unwrap_or(1);
        let mut now: Vec<Vec<u32>> = vec![vec![0; streams]; streams];
        let mut events: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let stream = usize::from(step.stream);
            if step.prepare {
                steps.push(At { stream, number: 0, ended: vec![0; streams] });
                continue;
            }
            for event in step.waits.iter().filter_map(|event| events.get(event)) {
                now[stream]
                    .iter_mut()
                    .zip(event)
                    .for_each(|(own, other)| *own = (*own).max(*other));
            }
            let ended = now[stream].clone();
            now[stream][stream] += 1;
            steps.push(At { stream, number: now[stream][stream], ended });
            if let Some(event) = step.records {
                events.insert(event, now[stream].clone());
            }
        }
        Self { steps, streams }
    }

    /// Whether step `earlier` has ended when step `later` begins, whatever the device does.
    pub fn is_before(&self, earlier: usize, later: usize) -> bool {
        let (a, b) = (&self.steps[earlier], &self.steps[later]);
        if a.number == 0 && b.number == 0 { earlier < later } else { a.number <= b.ended[a.stream] }
    }

    /// When each slot is in use; `None` for slots that no step touches. A slot that holds a result
    /// at the end of a call is in use until then. Slots of an arena that must share their bytes
    /// have one span.
    pub fn spans(&self, plan: &Plan) -> Vec<Option<LiveRange>> {
        let mut spans: Vec<Option<LiveRange>> = vec![None; plan.slots.len()];
        let together = plan.sharing();
        let mut touch = |slot: SlotId, step: usize| {
            let span = &mut spans[together[slot.0 as usize].0 as usize];
            let span = span.get_or_insert_with(|| LiveRange {
                begun: vec![u32::MAX; self.streams],
                ended: vec![0; self.streams],
                first: step,
                last: step,
            });
            let at = &self.steps[step];
            span.begun.iter_mut().zip(&at.ended).for_each(|(own, other)| *own = (*own).min(*other));
            span.ended[at.stream] = span.ended[at.stream].max(at.number);
            span.last = step;
        };
        for (index, step) in plan.steps.iter().enumerate() {
            step.reads.iter().chain(&step.writes).for_each(|&slot| touch(slot, index));
        }
        let last = plan.steps.len().saturating_sub(1);
        for slot in plan.outputs.iter().chain(plan.updates.iter().map(|(_, _, new)| new)) {
            let span = &mut spans[together[slot.0 as usize].0 as usize];
            if let Some(span) = span {
                (span.last, span.ended) = (last, vec![u32::MAX; self.streams]);
            }
        }
        together.into_iter().map(|slot| spans[slot.0 as usize].clone()).collect()
    }
}

impl LiveRange {
    /// Whether every use has ended when `other` is first used.
    pub fn precedes(&self, other: &LiveRange) -> bool {
        self.ended.iter().zip(&other.begun).all(|(own, others)| own <= others)
    }

    /// Whether two slots may share bytes.
    pub fn is_apart(&self, other: &LiveRange) -> bool {
        self.precedes(other) || other.precedes(self)
    }
}

impl Plan {
    /// For each slot, the representative of all slots that must share its bytes in an arena. A
    /// value that is updated in place there shares with its new value.
    pub fn sharing(&self) -> Vec<SlotId> {
        let mut stands: Vec<SlotId> = (0..self.slots.len() as u32).map(SlotId).collect();
        let in_arena = |slot: SlotId| matches!(self.slot(slot).place, SlotPlace::Arena { .. });
        for &(old, new) in self.steps.iter().flat_map(|step| &step.aliases) {
            if in_arena(old) && in_arena(new) {
                let (kept, gone) = (stands[old.0 as usize], stands[new.0 as usize]);
                stands.iter_mut().filter(|slot| **slot == gone).for_each(|slot| *slot = kept);
            }
        }
        stands
    }
}
