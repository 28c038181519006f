//! Which configuration needs least energy.

use super::super::judged::{Compared, Judged};
use super::group::by;
use super::win::{Win, least, sentences};
use super::{Finding, Topic};
use crate::energy::EnergyUse;

/// The least energy a call on each workload, among those that the same counter saw, unless all need the same.
pub(super) fn rule(judged: &Judged<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let case = &row.record.case;
        Some((case.study.clone(), case.workload.clone(), energy(row)?.source.clone()))
    });
    let wins = groups.into_values().filter_map(|candidates| {
        let joules = |row: &Compared<'_>| energy(row).map_or(f64::INFINITY, EnergyUse::joules_per_call);
        let winner = least(&candidates, joules);
        let idle = energy(winner)?.idle_watts;
        let figure = format!(
            "{:.3e} J a call, least of {}, measured with {idle:.1} W of the idle machine in it",
            joules(winner),
            candidates.len()
        );
        let differ = candidates.iter().any(|row| joules(row) > joules(winner));
        differ.then_some(Win { winner, candidates, figure, weight: 0.0 })
    });
    sentences(Topic::Energy, "energy", wins.collect())
}

fn energy<'r>(row: &Compared<'r>) -> Option<&'r EnergyUse> {
    row.measurement()?.energy.as_ref()
}
