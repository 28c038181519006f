//! Plan: runs the list of passes; decides every step and every byte before anything runs.
//!
//! Pure: graph, capabilities and tuning in, `Plan` out. Mode `eager` and `jit` keep each op of the
//! model one step; `compile` fuses first. Views never become steps unless a consumer cannot express
//! them. Values that only a transpose reads are stored in the order that the transpose wants.
//! Invariant: as `Plan` says.

mod arena;
pub(crate) mod chains;
mod collective;
mod contraction;
mod convolution;
mod copy_loops;
mod error;
mod fit;
pub(crate) mod join;
mod locate;
pub(crate) mod narrowed;
mod of_rank;
pub(crate) mod overwrite;
pub(crate) mod settle;
mod steps;
pub(crate) mod unread;
pub(crate) mod updates;

pub use arena::place;
pub use error::{OR_SMALLER_BATCH, PlanError};
pub use of_rank::plan_of_rank;
pub(crate) use steps::steps;

use crate::draft::{Draft, DraftSize, PassChange};
use crate::meeting_order::Ordered;
use fit::{fit, run_passes};
use overdrive_ir::plan::Plan;
use overdrive_ir::{Graph, Mode, Target, Tuning};

/// Plans a bound graph for a device: runs `PASSES`.
///
/// # Errors
/// When the graph has unbound dimensions or is ill-formed, a cache would be copied in every call,
/// or the plan exceeds `Tuning::memory_limit`.
pub fn plan(
    graph: &Graph,
    mode: Mode,
    target: &dyn Target,
    tuning: &Tuning,
) -> Result<Plan, PlanError> {
    Ok(fit(graph, (mode, target), tuning, Ordered::Turns)?.plan)
}

/// The plan, and what each pass changed on the way to it.
///
/// # Errors
/// As `plan`.
pub fn explain(
    graph: &Graph,
    mode: Mode,
    target: &dyn Target,
    tuning: &Tuning,
) -> Result<(Plan, Vec<PassChange>), PlanError> {
    let fitted = fit(graph, (mode, target), tuning, Ordered::Turns)?;
    let (mut changes, mut noted) = (Vec::new(), 0);
    let mut before = DraftSize { nodes: graph.nodes().len(), steps: 0 };
    let draft = Draft::new(graph, (mode, target), (&fitted.tuning, fitted.policy), Ordered::Turns);
    let mut plan = run_passes(draft, &mut |pass, draft| {
        let after = DraftSize { nodes: draft.graph.nodes().len(), steps: draft.plan.steps.len() };
        let notes = draft.plan.notes[noted..].to_vec();
        changes.push(PassChange { pass, before, after, notes });
        (before, noted) = (after, draft.plan.notes.len());
    })?;
    plan.limited = fitted.plan.limited;
    Ok((plan, changes))
}
