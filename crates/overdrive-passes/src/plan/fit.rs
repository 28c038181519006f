//! Fit: repeats the passes with other policies until a plan keeps the memory limit.

use super::error::PlanError;
use crate::draft::{Draft, Pass};
use crate::meeting_order::Ordered;
use crate::on_cores::on_cores;
use crate::pass::PASSES;
use crate::rematerialize::{Rematerialize, policies};
use overdrive_ir::plan::{Limited, Plan, Space};
use overdrive_ir::{Graph, MemorySpace, Mode, Target, Tuning};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::thread;

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
    ordered: Ordered,
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
        let draft = Draft::new(graph, (mode, target), (tuning, policy), ordered);
        let plan = run_passes(draft, &mut |_, _| ())?;
        Ok::<_, PlanError>(Fitted { plan, tuning: tuning.clone(), policy })
    };
    let peak = |fitted: &Fitted| fitted.plan.peak_bytes(Space::MAIN);
    let free = attempt(&Tuning { memory_limit: None, ..tuning.clone() }, Rematerialize::None)?;
    let needed = peak(&free);
    let Some(limit) = tuning.memory_limit.filter(|&limit| needed > limit) else { return Ok(free) };
    let device = target.description();
    let during = (free.plan.arena_bytes[0] + free.plan.scratch_bytes()) as u64;
    let mut least = needed;
    let mut if_it_fits = |found: Fitted| {
        least = least.min(peak(&found));
        let spaces = device.spaces.iter().enumerate();
        let exceeds = |(at, space): (usize, &MemorySpace)| {
            found.plan.peak_bytes(Space(at as u8 + 1)) > space.bytes
        };
        let fits = peak(&found) <= limit && !spaces.into_iter().any(exceeds);
        fits.then(|| (found.plan.seconds(device), found))
    };
    let policies = policies(graph, device)?;
    let best = if !device.spaces.is_empty() {
        let all = [&[Rematerialize::None][..], &policies].concat();
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut best: Option<(f64, Fitted)> = None;
        'all: for some in all.chunks(cores) {
            for found in on_cores(some, |_| 1, |&policy| attempt(tuning, policy)) {
                let Some((seconds, found)) = if_it_fits(found?) else { continue };
                let copies = found.plan.steps.iter().any(|step| step.stream != 0);
                if best.as_ref().is_none_or(|(fastest, _)| seconds < *fastest) {
                    best = Some((seconds, found));
                }
                // Those that follow compute more again.
                if !copies {
                    break 'all;
                }
            }
        }
        best
    } else {
        first_that_fits(&policies, |policy| Ok(if_it_fits(attempt(tuning, policy)?)))?
    };
    let waits = !device.spaces.is_empty();
    let graph = graph.name().to_owned();
    let error = || PlanError::OverLimit { graph, needed, during, least, waits, limit };
    let (seconds, mut fitted) = best.ok_or_else(error)?;
    let free_seconds = free.plan.seconds(device);
    fitted.plan.limited = Some(Limited { free_bytes: needed, free_seconds, seconds });
    Ok(fitted)
}

/// The first of policies that compute more and more again, and so take less and less memory. If
/// none fits, all are tried.
fn first_that_fits<F>(
    policies: &[Rematerialize],
    mut try_to_fit: impl FnMut(Rematerialize) -> Result<Option<F>, PlanError>,
) -> Result<Option<F>, PlanError> {
    let mut found = None;
    let (mut low, mut high) = (0, policies.len());
    while found.is_none() && low < high {
        high -= 1;
        found = try_to_fit(policies[high])?;
    }
    while low < high {
        let middle = low.midpoint(high);
        match try_to_fit(policies[middle])? {
            Some(fitting) => (found, high) = (Some(fitting), middle),
            None => low = middle + 1,
        }
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_policy_that_fits_is_found_in_few_plans() {
        let policies: Vec<Rematerialize> =
            (0..9).map(|saved_bytes| Rematerialize::Budget { saved_bytes }).collect();
        for first in 0..10_u64 {
            let mut tried = 0;
            let found = first_that_fits(&policies, |policy| {
                tried += 1;
                let Rematerialize::Budget { saved_bytes } = policy else { unreachable!() };
                Ok((saved_bytes >= first).then_some(saved_bytes))
            });
            assert_eq!(found, Ok((first < 9).then_some(first)));
            assert!(tried <= 5 || first == 9, "{first}: {tried}");
        }
    }
}
