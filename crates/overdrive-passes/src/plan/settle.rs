//! The last questions about each step, whose operands and results lie where they will: its scratch,
//! and whether its kernel takes them so.
//!
//! It runs ahead of the passes that keep a memory limit, so that they count scratch. Invariant:
//! whatever the device declines is a step of the host by now, and the plan says why.

use super::steps::on_the_host;
use overdrive_ir::plan::{Plan, Step, StepKind};
use overdrive_ir::{Call, Decline, Target};

/// Asks the device about each step.
pub(crate) fn settle(plan: &mut Plan, target: &dyn Target) {
    for step in &mut plan.steps {
        match target.kernel(&Call::Step(step)) {
            Ok(kernel) => step.scratch_bytes = kernel.scratch_bytes,
            Err(Decline::NoKernel) => {}
            Err(Decline::Because(reason)) => {
                if let StepKind::Kernel(call) = &step.kind {
                    plan.notes.push(on_the_host(&step.name, &step.scope, &reason));
                    step.kind = StepKind::Host(call.clone());
                }
            }
        }
    }
}

/// The most scratch that a step takes, in bytes.
pub(super) fn scratch(step: &Step, target: &dyn Target) -> usize {
    target.kernel(&Call::Step(step)).map_or(0, |kernel| kernel.scratch_bytes)
}
