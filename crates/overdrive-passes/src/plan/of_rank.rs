//! `plan_of_rank`: the plan of one rank, whose collectives come in the order of all other ranks'.
//!
//! A rank folds what its place makes known: a part of a table, or a factor that is 1 here alone.
//! Collectives start as soon as their operand is ready, and less work may stand before one on this
//! rank. So ranks compare their plans. If all have one order, as for models, it stays. Otherwise
//! each plans again: its collectives come in the order of the graph, which no rank changes. None is
//! made again or cut, and none joins a bucket. They still start early, one after another.

use super::error::PlanError;
use super::fit::fit;
use crate::meeting_order::Ordered;
use overdrive_ir::plan::{Note, Plan};
use overdrive_ir::{Communicator, Graph, Mode, Target, Tuning, agree_on, have_one_order};

/// Plans a bound graph as one of several ranks. All of them plan it at the same time.
///
/// # Errors
/// As [`plan`](super::plan()); `Ranks` with the first collective that another rank does not have,
/// or when one fails meanwhile.
pub fn plan_of_rank(
    graph: &Graph,
    mode: Mode,
    target: &dyn Target,
    tuning: &Tuning,
    communicator: &dyn Communicator,
) -> Result<Plan, PlanError> {
    let found = fit(graph, (mode, target), tuning, Ordered::Turns)?.plan;
    if have_one_order(communicator, &found)? {
        return Ok(found);
    }
    let mut plan = fit(graph, (mode, target), tuning, Ordered::All)?.plan;
    agree_on(communicator, &plan)?;
    plan.notes.push(Note::Declined {
        what: "buckets of collectives".to_owned(),
        scope: graph.name().to_owned(),
        reason: "ranks know different constants, and would start collectives in different orders"
            .to_owned(),
    });
    Ok(plan)
}
