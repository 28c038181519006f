//! State updates in place: where the step that computes the new value may overwrite the old one.

use super::locate::is_dense;
use overdrive_ir::Prim;
use overdrive_ir::plan::{Instr, KernelOp, Place, Plan, SlotId, Step, StepKind};

/// Lets new values take the place of their states where no byte is read after it is written.
pub(super) fn in_place(plan: &mut Plan) {
    for i in 0..plan.updates.len() {
        let (name, old, new) = plan.updates[i].clone();
        if !matches!(plan.slot(new).place, Place::Arena { .. }) {
            continue;
        }
        let writers: Vec<usize> =
            (0..plan.steps.len()).filter(|&s| plan.steps[s].writes.contains(&new)).collect();
        let [writer] = writers[..] else { continue };
        let read_later = plan.steps[writer + 1..].iter().any(|s| s.reads.contains(&old));
        if read_later || !overwrites(&plan.steps[writer], old, new) {
            continue;
        }
        plan.slots[new.0 as usize].place = Place::State(name);
        plan.steps[writer].aliases.push((old, new));
    }
}

/// True when the step reads each element of `old` only where it writes that element of `new`, or not at all.
fn overwrites(step: &Step, old: SlotId, new: SlotId) -> bool {
    match &step.kind {
        StepKind::Loop(program) => {
            let stores: Vec<_> = program.stores.iter().filter(|s| s.access.slot == new).collect();
            let [store] = stores[..] else { return false };
            program.reduced == 0
                && program.instrs.iter().all(|instr| match instr {
                    Instr::Load(load) if load.slot == old => {
                        (load.offset, &load.strides) == (store.access.offset, &store.access.strides)
                    }
                    _ => true,
                })
        }
        StepKind::Kernel(call) => {
            let updates = matches!(call.op, KernelOp::Prim(Prim::DynamicUpdateSlice, _));
            let [whole, part, _] = &call.operands[..] else { return false };
            updates && whole.slot == old && is_dense(whole) && part.slot != old
        }
        _ => false,
    }
}
