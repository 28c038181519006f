//! Launches of several steps.

use overdrive_ir::plan::{Plan, Step, StepKind};

/// The steps of each launch of several, in the order of the plan.
pub(crate) fn joined(plan: &Plan) -> Vec<Vec<Step>> {
    let parts = |step: &Step| match &step.kind {
        StepKind::Joined(_, steps) => Some(steps.clone()),
        _ => None,
    };
    plan.steps.iter().filter_map(parts).collect()
}
