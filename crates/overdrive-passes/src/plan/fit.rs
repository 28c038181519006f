//! Fit: repeats the passes with other policies until a plan keeps the memory limit.

use super::error::PlanError;
use crate::draft::{Draft, Pass};
use crate::pass::PASSES;
use crate::rematerialize::{Rematerialize, policies};
use overdrive_ir::plan::{Limited, Plan, Space};
use overdrive_ir::{Graph, MemorySpace, Mode, Target, Tuning};
use std::collections::BTreeSet;

/// A plan within its limit, and the tuning that made it.
pub(super) struct Fitted {
    pub(super) plan: Plan,
    pub(super) tuning: Tuning,
    pub(super) policy: Rematerialize,
}

/// The plan that should take least time, of those that keep the memory limit. The two ways to it,
/// computing values again and moving them to other memory, are tried together: less is computed
/// again, the more is moved.
pub(super) fn fit(
    graph: &Graph,
    (mode, target): (Mode, &dyn Target),
    tuning: &Tuning,
) -> Result<Fitted, PlanError> {
    let unbound: BTreeSet<String> = graph
        .values()
        .flat_map(|v| graph.ty(v).shape.0.clone())
        .filter_map(|d| if d.size().is_none() { Some(d.to_string()) } else { None })
        .collect();
    if !unbound.is_empty() {
        let names = unbound.into_iter().collect();
        return Err(PlanError::Unbound { graph: graph.name().to_owned(), names });
    }
    let attempt = |tuning: &Tuning, policy| {
        let draft = Draft::new(graph, (mode, target), (tuning, policy));
        let plan = run_passes(draft, &mut |_, _| ())?;
        Ok::<_, PlanError>(Fitted { plan, tuning: tuning.clone(), policy })
    };
    let peak = |fitted: &Fitted| fitted.plan.peak_bytes(Space::MAIN);
    let free = attempt(&Tuning { memory_limit: None, ..tuning.clone() }, Rematerialize::None)?;
    let needed = peak(&free);
    let Some(limit) = tuning.memory_limit.filter(|&limit| needed > limit) else { return Ok(free) };
    let device = target.description();
    let mut least = needed;
    let mut best: Option<(f64, Fitted)> = None;
    for policy in [Rematerialize::None].into_iter().chain(policies(graph)?) {
        if device.spaces.is_empty() && policy == Rematerialize::None {
            continue;
        }
        let found = attempt(tuning, policy)?;
        least = least.min(peak(&found));
        let spaces = device.spaces.iter().enumerate();
        let exceeds = |(at, space): (usize, &MemorySpace)| {
            found.plan.peak_bytes(Space(at as u8 + 1)) > space.bytes
        };
        if peak(&found) > limit || spaces.into_iter().any(exceeds) {
            continue;
        }
        let seconds = found.plan.seconds(device);
        let copies = found.plan.steps.iter().any(|step| step.stream != 0);
        if best.as_ref().is_none_or(|(fastest, _)| seconds < *fastest) {
            best = Some((seconds, found));
        }
        // Those that follow compute more again.
        if !copies {
            break;
        }
    }
    let during = (free.plan.arena_bytes[0] + free.plan.scratch_bytes()) as u64;
    let waits = !device.spaces.is_empty();
    let graph = graph.name().to_owned();
    let error = || PlanError::OverLimit { graph, needed, during, least, waits, limit };
    let (seconds, mut fitted) = best.ok_or_else(error)?;
    let free_seconds = free.plan.seconds(device);
    fitted.plan.limited = Some(Limited { free_bytes: needed, free_seconds, seconds });
    Ok(fitted)
}

/// Runs the passes; `see` is shown each with what it made.
pub(super) fn run_passes(
    mut draft: Draft<'_>,
    see: &mut dyn FnMut(&'static Pass, &Draft<'_>),
) -> Result<Plan, PlanError> {
    let mode = draft.plan.mode;
    for pass in PASSES.iter().filter(|pass| pass.modes.contains(&mode)) {
        (pass.run)(&mut draft)?;
        see(pass, &draft);
    }
    debug_assert_eq!(draft.plan.verify(), Ok(()), "{}", draft.plan);
    Ok(draft.plan)
}
