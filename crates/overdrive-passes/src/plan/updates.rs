//! State updates in place: where the step that computes the new value may overwrite the old one.

use super::error::PlanError;
use super::steps::is_dense;
use overdrive_ir::Graph;
use overdrive_ir::plan::{Instr, KernelOp, Plan, SlotId, SlotPlace, Step, StepKind};

/// Lets new values take the place of their states where no byte is read after it is written.
pub(crate) fn in_place(plan: &mut Plan) {
    for i in 0..plan.updates.len() {
        let (name, old, new) = plan.updates[i].clone();
        if !matches!(plan.slot(new).place, SlotPlace::Arena { .. }) {
            continue;
        }
        let writers: Vec<usize> =
            (0..plan.steps.len()).filter(|&s| plan.steps[s].writes.contains(&new)).collect();
        let [writer] = writers[..] else { continue };
        let writer = readers_first(plan, writer, old);
        let read_later = plan.steps[writer + 1..].iter().any(|s| s.reads.contains(&old));
        if read_later || !overwrites(&plan.steps[writer], old, new) {
            continue;
        }
        plan.slots[new.0 as usize].place = SlotPlace::State(name);
        plan.steps[writer].aliases.push((old, new));
    }
}

/// Moves steps that read `old` and need nothing of step `writer` before it, with what they depend
/// on; the writer's new index.
fn readers_first(plan: &mut Plan, mut writer: usize, old: SlotId) -> usize {
    for reader in writer + 1..plan.steps.len() {
        if !plan.steps[reader].reads.contains(&old) {
            continue;
        }
        let mut needed = vec![reader];
        for step in (writer..reader).rev() {
            if needed.iter().any(|&later| depends(plan, later, step)) {
                needed.push(step);
            }
        }
        if needed.contains(&writer) {
            continue;
        }
        for step in needed.into_iter().rev() {
            plan.steps[writer..=step].rotate_right(1);
            writer += 1;
        }
    }
    writer
}

/// True when step `later` must stay behind step `earlier`. A state that was updated in place is two
/// slots of the same bytes.
fn depends(plan: &Plan, later: usize, earlier: usize) -> bool {
    let bytes = |slot: SlotId| match &plan.slot(slot).place {
        SlotPlace::State(name) => Err(name),
        _ => Ok(slot),
    };
    let meets =
        |a: &[SlotId], b: &[SlotId]| a.iter().any(|&x| b.iter().any(|&y| bytes(x) == bytes(y)));
    let (later, earlier) = (&plan.steps[later], &plan.steps[earlier]);
    meets(&earlier.writes, &later.reads)
        || meets(&earlier.writes, &later.writes)
        || meets(&earlier.reads, &later.writes)
}

/// The first state that is written in part and could not be updated in place. Keeping the old value
/// would silently copy all of it in every call: a cache of a million tokens for one token.
pub(crate) fn copied_cache(graph: &Graph, plan: &Plan) -> Option<PlanError> {
    graph.states().iter().find_map(|state| {
        let node = graph.producer(state.update?)?;
        let in_part = node.op.prim().is_some_and(|prim| prim.written_part().is_some())
            && node.operands[0] == state.value;
        let (_, old, new) = plan.updates.iter().find(|(name, ..)| *name == state.name)?;
        if !in_part || !matches!(plan.slot(*new).place, SlotPlace::Arena { .. }) {
            return None;
        }
        let writer = plan.steps.iter().position(|s| s.writes.contains(new))?;
        let reader = plan.steps[writer..].iter().skip(1).find(|s| s.reads.contains(old));
        let reader = reader.unwrap_or(&plan.steps[writer]);
        Some(PlanError::CopiedState {
            state: state.name.clone(),
            scope: node.scope.to_string(),
            reader: format!(
                "`{}` at {}",
                reader.name,
                if reader.scope.is_empty() { "the top" } else { &reader.scope }
            ),
        })
    })
}

/// True when the step reads each element of `old` only where it writes that element of `new`, or
/// not at all.
pub(super) fn overwrites(step: &Step, old: SlotId, new: SlotId) -> bool {
    match &step.kind {
        StepKind::Loop(program) => {
            let stores: Vec<_> = program.stores.iter().filter(|s| s.access.slot == new).collect();
            let [store] = stores[..] else { return false };
            // Loops store elements in their last pass over a row, after they read the row.
            let in_last_pass = program.reduced == 0 || program.is_spread(&store.access);
            in_last_pass
                && program.instrs.iter().all(|instr| match instr {
                    Instr::Load(load) if load.slot == old => {
                        (load.offset, &load.strides) == (store.access.offset, &store.access.strides)
                    }
                    _ => true,
                })
        }
        StepKind::Kernel(call) | StepKind::Host(call) => {
            let KernelOp::Prim(prim, _) = &call.op else { return false };
            let Some((whole, others)) = call.operands.split_first() else { return false };
            prim.written_part().is_some()
                && whole.slot == old
                && is_dense(whole)
                && others.iter().all(|other| other.slot != old)
        }
        _ => false,
    }
}
