//! Values that take the bytes of what they are computed from, where those are read for the last
//! time.
//!
//! The largest value of a language model's training step is its logits, and their gradient is as
//! large. A loop computes one from the other, element by element, so it needs one buffer and not
//! two. Runs after steps were brought into launches: within a launch there is no order that would
//! let one step overwrite what another reads.

use super::updates::overwrites;
use super::{place, settle};
use overdrive_ir::Target;
use overdrive_ir::plan::{Plan, SlotId, SlotPlace, Step, StepKind};

/// Lets loops write over values of the plan that nothing reads after them. They may take other
/// scratch then.
pub(crate) fn overwrite(plan: &mut Plan, target: &dyn Target) {
    share(plan);
    let ours = plan.steps.iter_mut().filter(|step| step.stream == 0);
    for step in ours.filter(|step| !step.aliases.is_empty()) {
        step.scratch_bytes = settle::scratch(step, target);
    }
}

fn share(plan: &mut Plan) {
    let uses = Uses::of(plan);
    for at in 0..plan.steps.len() {
        let step = &plan.steps[at];
        if step.prepare || !matches!(step.kind, StepKind::Loop(_)) {
            continue;
        }
        let taken =
            |slot: SlotId| step.aliases.iter().any(|&(old, new)| old == slot || new == slot);
        let mut pairs: Vec<(SlotId, SlotId)> = Vec::new();
        for &new in step.writes.iter().filter(|&&new| uses.begins(new, at) && !taken(new)) {
            let fits = |&&old: &&SlotId| {
                let (a, b) = (plan.slot(old), plan.slot(new));
                uses.ends(old, at)
                    && !taken(old)
                    && !pairs.iter().any(|pair| pair.0 == old)
                    && (a.ty.dtype.bits(), a.bytes()) == (b.ty.dtype.bits(), b.bytes())
                    && overwrites(step, old, new)
            };
            if let Some(&old) = step.reads.iter().find(fits) {
                pairs.push((old, new));
            }
        }
        plan.steps[at].aliases.extend(pairs);
    }
}

/// The plan as it will be placed.
pub(crate) fn placed(plan: &Plan) -> Plan {
    let mut placed = plan.clone();
    share(&mut placed);
    place(&mut placed);
    placed
}

/// When the slots of arenas are used.
struct Uses {
    /// First and last step that touches a slot; `None` where it is not the plan's to overwrite.
    spans: Vec<Option<(usize, usize)>>,
    /// Steps that write a slot.
    writers: Vec<usize>,
}

impl Uses {
    fn of(plan: &Plan) -> Self {
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; plan.slots.len()];
        let mut writers = vec![0; plan.slots.len()];
        let mut fixed: Vec<bool> =
            plan.slots.iter().map(|slot| !matches!(slot.place, SlotPlace::Arena { .. })).collect();
        let results = plan.updates.iter().flat_map(|(_, old, new)| [old, new]);
        results.chain(&plan.outputs).for_each(|slot| fixed[slot.0 as usize] = true);
        for (at, step) in plan.steps.iter().enumerate() {
            step.writes.iter().for_each(|slot| writers[slot.0 as usize] += 1);
            for slot in step.reads.iter().chain(&step.writes).map(|slot| slot.0 as usize) {
                let (first, _) = *spans[slot].get_or_insert((at, at));
                spans[slot] = Some((first, at));
                fixed[slot] |= step.prepare || is_under_way(step);
            }
        }
        let free = spans.into_iter().zip(fixed).map(|(span, fixed)| span.filter(|_| !fixed));
        Self { spans: free.collect(), writers }
    }

    /// Whether a step alone writes the slot, and nothing touches it before.
    fn begins(&self, slot: SlotId, at: usize) -> bool {
        let slot = slot.0 as usize;
        self.writers[slot] == 1 && self.spans[slot].is_some_and(|(first, _)| first == at)
    }

    /// Whether a slot has been written and is touched by no step after this one.
    fn ends(&self, slot: SlotId, at: usize) -> bool {
        self.spans[slot.0 as usize].is_some_and(|(first, last)| first < at && last == at)
    }
}

/// Whether a step may still read or write when later ones run.
fn is_under_way(step: &Step) -> bool {
    step.stream != 0
        || matches!(
            step.kind,
            StepKind::CopyStart
                | StepKind::CopyDone
                | StepKind::CollectiveStart { .. }
                | StepKind::CollectiveDone { .. }
        )
}
