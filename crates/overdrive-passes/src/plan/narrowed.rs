//! States that are only rounded to a narrower format are rounded first, one after another: loops,
//! then casts to codes.
//!
//! A training step rounds each weight where its layer needs it: a launch each, all of them short.
//! Placed one after another, a device may merge them into one launch. The rounded value is kept for
//! the backward pass anyway, so this needs no more memory. Codes that only the forward pass reads
//! take a byte a parameter from the start, when activations are not there yet. Invariant: no step
//! before them writes what they read.

use crate::rematerialize::is_again;
use overdrive_ir::ops::CastTranspose;
use overdrive_ir::plan::{KernelOp, Plan, SlotPlace, Step, StepKind};

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
    front.sort_by_key(|step| !matches!(step.kind, StepKind::Loop(_)));
    front.extend(rest);
    plan.steps = front;
}

/// Whether a loop or a cast of each call reads states alone and leaves fewer bytes of its own.
fn narrows_state(plan: &Plan, step: &Step) -> bool {
    let of_state = |slot: &_| matches!(plan.slot(*slot).place, SlotPlace::State(_));
    let own = |slot: &_| matches!(plan.slot(*slot).place, SlotPlace::Arena { .. });
    let bytes = |slots: &[_]| slots.iter().map(|slot| plan.slot(*slot).bytes()).sum::<usize>();
    let rounds = match &step.kind {
        StepKind::Loop(_) => true,
        StepKind::Kernel(call) => match &call.op {
            KernelOp::Composite(op, _) => op.downcast::<CastTranspose>().is_some(),
            KernelOp::Prim(..) => false,
        },
        _ => false,
    };
    // A value that is computed again is to be there late.
    rounds
        && !is_again(&step.scope)
        && !step.prepare
        && step.reads.iter().all(of_state)
        && step.writes.iter().all(own)
        && bytes(&step.writes) < bytes(&step.reads)
}
