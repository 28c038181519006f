//! States that are only rounded to a narrower format are rounded first, one after another.
//!
//! A training step rounds each weight where its layer needs it: a launch each, all of them short.
//! Placed one after another, a device may merge them into one launch. The rounded value is kept for
//! the backward pass anyway, so this needs no more memory. Invariant: no step before them writes
//! what they read.

use overdrive_ir::plan::{Plan, SlotPlace, Step, StepKind};

/// Moves these steps to the front, before anything is placed.
pub(crate) fn first(plan: &mut Plan) {
    let mut written = vec![false; plan.slots.len()];
    let mut is_first = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let untouched = step.reads.iter().chain(&step.writes).all(|slot| !written[slot.0 as usize]);
        is_first.push(untouched && narrows_state(plan, step));
        step.writes.iter().for_each(|slot| written[slot.0 as usize] = true);
    }
    let mut flags = is_first.into_iter();
    let steps = std::mem::take(&mut plan.steps);
    let (mut front, rest): (Vec<Step>, Vec<Step>) =
        steps.into_iter().partition(|_| flags.next().expect("a flag for each step"));
    front.extend(rest);
    plan.steps = front;
}

/// Whether a loop of each call reads states alone and leaves fewer bytes of its own.
fn narrows_state(plan: &Plan, step: &Step) -> bool {
    let of_state = |slot: &_| matches!(plan.slot(*slot).place, SlotPlace::State(_));
    let own = |slot: &_| matches!(plan.slot(*slot).place, SlotPlace::Arena { .. });
    let bytes = |slots: &[_]| slots.iter().map(|slot| plan.slot(*slot).bytes()).sum::<usize>();
    matches!(step.kind, StepKind::Loop(_))
        && !step.prepare
        && step.reads.iter().all(of_state)
        && step.writes.iter().all(own)
        && bytes(&step.writes) < bytes(&step.reads)
}
