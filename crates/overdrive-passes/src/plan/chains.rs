//! Chains: merges convolutions into one step, if each reads the result of the one before and the
//! device runs them band by band.
//!
//! A tensor that is handed on then never exists as a whole. It neither goes to memory nor takes
//! bytes of the arena. Invariant: nobody else reads it, and nothing but preparation stood between
//! the steps.

use overdrive_ir::plan::{ConvolutionCall, Instr, Note, Plan, SlotId, SlotPlace, Step, StepKind};
use overdrive_ir::{Call, Decline, Target};

/// Joins steps of a plan whose buffers are not yet placed.
pub(crate) fn join(plan: &mut Plan, target: &dyn Target) {
    let mut at = 0;
    while at < plan.steps.len() {
        let asked = joined(plan, at)
            .map(|(first, calls)| (first, target.kernel(&Call::Chain(&calls)), calls));
        match asked {
            Some((first, Ok(_), calls)) => {
                let before = plan.steps.remove(first);
                at -= 1;
                let between =
                    plan.slot(calls[calls.len() - 2].epilogue.0.stores[0].access.slot).ty.bytes();
                become_chain(&mut plan.steps[at], (before, between as u64), calls);
            }
            Some((first, Err(Decline::Because(reason)), _)) => {
                let (before, step) = (&plan.steps[first], &plan.steps[at]);
                let what = format!("chain of {}, {}", before.name, step.name);
                let scope = step.scope.clone();
                plan.notes.push(Note::Declined { what, scope, reason });
                at += 1;
            }
            Some((_, Err(Decline::NoKernel), _)) | None => at += 1,
        }
    }
}

/// The convolutions of a step.
fn calls(step: &Step) -> &[ConvolutionCall] {
    match &step.kind {
        StepKind::Convolution(call) => std::slice::from_ref(call),
        StepKind::Chain(calls) => calls,
        _ => &[],
    }
}

/// The step whose result the convolution at `at` alone reads, and the calls of both.
fn joined(plan: &Plan, at: usize) -> Option<(usize, Vec<ConvolutionCall>)> {
    let StepKind::Convolution(call) = &plan.steps[at].kind else { return None };
    let handed = call.input.slot;
    let readers =
        |slot: SlotId| plan.steps.iter().filter(move |step| step.reads.contains(&slot)).count();
    let new_state = plan.updates.iter().any(|(_, old, new)| *old == handed || *new == handed);
    let own = matches!(plan.slot(handed).place, SlotPlace::Arena { .. });
    if !own
        || new_state
        || readers(handed) != 1
        || call.kernel.slot == handed
        || loads(call, handed)
    {
        return None;
    }
    let first = plan.steps[..at].iter().rposition(|step| !step.prepare)?;
    let before = calls(&plan.steps[first]);
    let program = &before.last()?.epilogue.0;
    let [store] = program.stores.as_slice() else { return None };
    let same = store.access.slot == handed
        && (store.access.offset, &store.access.strides) == (call.input.offset, &call.input.strides)
        && program.extents == call.input.ty.sizes()
        && program.reduced == 0;
    same.then(|| (first, before.iter().chain([call]).cloned().collect()))
}

/// Whether an epilogue reads a slot.
fn loads(call: &ConvolutionCall, slot: SlotId) -> bool {
    call.epilogue
        .0
        .instrs
        .iter()
        .any(|instr| matches!(instr, Instr::Load(access) if access.slot == slot))
}

fn become_chain(step: &mut Step, (before, between): (Step, u64), calls: Vec<ConvolutionCall>) {
    let handed = before.writes.clone();
    step.reads.retain(|slot| !handed.contains(slot));
    for slot in before.reads {
        if !step.reads.contains(&slot) {
            step.reads.push(slot);
        }
    }
    step.cost.flops += before.cost.flops;
    step.cost.bytes = (step.cost.bytes + before.cost.bytes).saturating_sub(2 * between);
    step.name = format!("{}, {}", before.name, step.name);
    step.kind = StepKind::Chain(calls);
}
