//! The configuration that needs the least memory.

use super::super::judged::{JudgedResults, JudgedRow};
use super::super::witness::{memory, witness};
use super::finding::{Finding, Topic};
use super::grouped::by;
use super::win::{Win, least, sentences};
use overdrive_bench::digits;

/// The smallest addition of one call on each workload, unless all need the same.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        memory(row)?;
        Some((row.record.case.study.clone(), row.record.case.workload.clone()))
    });
    sentences(Topic::Memory, "the least memory has", groups.into_values().filter_map(win).collect())
}

fn win<'j, 'r>(candidates: Vec<&'j JudgedRow<'r>>) -> Option<Win<'j, 'r>> {
    let witness = witness(&candidates)?;
    let added = |row: &JudgedRow<'_>| memory(row).and_then(witness.bytes).unwrap_or(u64::MAX);
    let winner = least(&candidates, |row| added(row) as f64);
    let most = least(&candidates, |row| -(added(row) as f64));
    (added(winner) < added(most)).then(|| {
        let figure = format!(
            "a call adds {} ({}), least of {}; `{}` adds {}, most",
            digits::bytes(added(winner)),
            witness.name,
            candidates.len(),
            most.label,
            digits::bytes(added(most))
        );
        Win { winner, figure, weight: (added(most) - added(winner)) as f64, candidates }
    })
}
