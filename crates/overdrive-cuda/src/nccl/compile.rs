//! Compiles the collective of a step, by the way that the plan's ranks have chosen.

use super::collective::{Collective, NcclCollective};
use super::plan_ranks::PlanRanks;
use crate::launch::{Launch, Refusal, Site};
use crate::peers::{CollectivePart, Copies, Movement};
use overdrive_ir::{Operation, Prim};
use std::sync::Arc;

/// Compiles the collective of a step.
///
/// # Errors
/// `Unsupported` for elements that NCCL does not fold; as the groups of `Ranks`.
pub(crate) fn compile(
    site: &Site<'_>,
    prim: &Prim,
    ranks: Option<&Arc<PlanRanks>>,
) -> Result<Box<dyn Launch>, Refusal> {
    let axes = &prim.channel().expect("collectives have a channel").group;
    let Some(ranks) = ranks else {
        return Err(Refusal::Unsupported(format!(
            "it is one rank of {axes}, and this back end has no way to the others: open it with \
             `on` a communicator"
        )));
    };
    let (plan, step) = (site.plan, site.step);
    let dtype = plan.slot(step.reads[0]).ty.dtype;
    let refused = || {
        let name = Operation::Prim(prim.clone()).name();
        let reason = format!("no `{name}` on {dtype}; convert to a wider type before it");
        Refusal::Unsupported(reason)
    };
    if !dtype.bits().is_multiple_of(8) {
        return Err(refused());
    }
    let parts = CollectivePart::all(plan, step);
    if let Some(group) = ranks.peers(step) {
        let movement = Movement::of(prim, group.position()).expect("copies only move bytes");
        return Ok(Box::new(Copies { group: Arc::clone(group), movement, parts }));
    }
    let group = Arc::clone(&ranks.group(axes)?.nccl);
    let kind = NcclCollective::of(prim, dtype, group.position).ok_or_else(refused)?;
    Ok(Box::new(Collective { group, kind, parts }))
}
