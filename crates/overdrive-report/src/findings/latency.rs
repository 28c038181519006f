//! The configuration with the lowest latency.

use super::super::judged::{JudgedResults, JudgedRow};
use super::super::leaders::{believed, fastest};
use super::finding::{Finding, Topic};
use super::grouped::by;
use super::win::{Win, sentences};
use overdrive_bench::digits;

/// The fastest of each workload, among those timed on the same clock, where an interval decides
/// against another.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let (_, series) = believed(judged, row)?;
        let case = &row.record.case;
        let clock = (series.conditions.basis.to_string(), format!("{:?}", series.conditions.depth));
        Some((case.study.clone(), case.workload.clone(), clock))
    });
    sentences(Topic::Latency, "the fastest is", groups.into_values().filter_map(win).collect())
}

fn win<'j, 'r>(candidates: Vec<&'j JudgedRow<'r>>) -> Option<Win<'j, 'r>> {
    let lead = fastest(&candidates)?;
    let winner = lead.winner;
    let summary = &winner.measurement()?.latency.as_ref()?.summary;
    let mut figure = format!("{}, first of {}", digits::time_of(summary), candidates.len());
    let gain =
        winner.speedup().filter(|gain| candidates.iter().any(|row| row.id == gain.baseline()));
    if let (Some(gain), Some(over)) = (gain, &winner.over) {
        figure += &format!(", {gain}, over `{over}`");
    }
    figure += &lead.doubt();
    let weight = gain.map_or(0.0, |gain| gain.ratio());
    Some(Win { winner, figure, weight, candidates })
}
