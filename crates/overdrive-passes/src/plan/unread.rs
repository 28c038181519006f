//! Steps that only make a tensor of a weighed sum get a condition. A call leaves them out if all
//! weights of the tensor are 0.
//!
//! A mixture of experts chooses a few for each token. So a decoder's step of one token needs the
//! weights of those few, and reads no others. Invariant: what such a step writes is read by nothing
//! but steps with the same condition, and by the sum.

use overdrive_ir::ops::WeighedSum;
use overdrive_ir::plan::{KernelOp, OnlyIf, Plan, SlotId, SlotPlace, StepKind};
use std::collections::BTreeSet;

/// Gives these steps their condition.
pub(crate) fn unread(plan: &mut Plan) {
    let uses = Uses::of(plan);
    for sum in 0..plan.steps.len() {
        let StepKind::Kernel(call) = &plan.steps[sum].kind else { continue };
        let KernelOp::Composite(op, _) = &call.op else { continue };
        let Some(&WeighedSum { first }) = op.downcast() else { continue };
        let weights = &call.operands[0];
        let Some(columns) = weights.ty.sizes().pop().filter(|_| weights.is_dense()) else {
            continue;
        };
        let shape = [weights.ty.elements() / columns.max(1), columns];
        let weights = weights.slot;
        let tensors: Vec<SlotId> = call.operands[1..].iter().map(|view| view.slot).collect();
        // Those after the weights, which a call may bring too.
        let known = uses.writers[weights.0 as usize].iter().max();
        let after = known.map_or(0, |known| known + 1);
        for (i, &tensor) in tensors.iter().enumerate() {
            if tensors.iter().filter(|other| **other == tensor).count() > 1 {
                continue;
            }
            let only_if = OnlyIf { weights, shape, column: first + i };
            for step in uses.alone(plan, sum, tensor).range(after..) {
                let step = &mut plan.steps[*step];
                step.only_if = Some(only_if);
                if !step.reads.contains(&weights) {
                    step.reads.push(weights);
                }
            }
        }
    }
}

/// The steps that touch each slot.
struct Uses {
    writers: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
    /// Whether it is of the plan alone, and no result.
    inner: Vec<bool>,
}

impl Uses {
    fn of(plan: &Plan) -> Self {
        let none = || vec![vec![]; plan.slots.len()];
        let (mut writers, mut readers) = (none(), none());
        for (index, step) in plan.steps.iter().enumerate() {
            step.writes.iter().for_each(|slot| writers[slot.0 as usize].push(index));
            step.reads.iter().for_each(|slot| readers[slot.0 as usize].push(index));
        }
        let is_inner = |slot: &_| matches!(slot, SlotPlace::Arena { .. });
        let mut inner: Vec<bool> = plan.slots.iter().map(|slot| is_inner(&slot.place)).collect();
        let results = plan.outputs.iter().chain(plan.updates.iter().map(|(_, _, new)| new));
        results.for_each(|slot| inner[slot.0 as usize] = false);
        Self { writers, readers, inner }
    }

    /// The steps that nothing needs but this tensor of step `sum`.
    fn alone(&self, plan: &Plan, sum: usize, tensor: SlotId) -> BTreeSet<usize> {
        let mut alone = BTreeSet::new();
        let mut pending = self.writers[tensor.0 as usize].clone();
        while let Some(index) = pending.pop() {
            let step = &plan.steps[index];
            let is_read = |slot: SlotId, reader: usize| {
                alone.contains(&reader) || (reader == sum && slot == tensor)
            };
            let is_alone = |slot: &SlotId| {
                let at = slot.0 as usize;
                self.inner[at] && self.readers[at].iter().all(|&reader| is_read(*slot, reader))
            };
            let computes = matches!(
                step.kind,
                StepKind::Loop(_)
                    | StepKind::Gemm(_)
                    | StepKind::Convolution(_)
                    | StepKind::Kernel(_)
            );
            let is_free = computes && !step.prepare && step.only_if.is_none();
            if is_free && step.writes.iter().all(is_alone) && alone.insert(index) {
                let before = step.reads.iter().flat_map(|slot| &self.writers[slot.0 as usize]);
                pending.extend(before);
            }
        }
        alone
    }
}
