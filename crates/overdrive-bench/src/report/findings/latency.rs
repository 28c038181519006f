//! Which configuration answers soonest.

use super::super::judged::{Compared, Judged};
use super::group::{believed, by};
use super::win::{Win, least, sentences};
use super::{Finding, Topic};
use crate::digits;
use crate::statistics::Summary;

/// The fastest of each workload, among those timed on the same clock.
pub(super) fn rule(judged: &Judged<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let (_, series) = believed(row)?;
        let case = &row.record.case;
        let clock = (series.conditions.basis.to_string(), format!("{:?}", series.conditions.depth));
        Some((case.study.clone(), case.workload.clone(), clock))
    });
    let wins = groups.into_values().filter(|candidates| candidates.len() > 1).map(win);
    sentences(Topic::Latency, "latency", wins.collect())
}

fn win<'j, 'r>(candidates: Vec<&'j Compared<'r>>) -> Win<'j, 'r> {
    let winner = least(&candidates, |row| summary(row).median_ns);
    let mut figure = format!("{}, fastest of {}", digits::time_of(summary(winner)), candidates.len());
    let gain = winner.speedup();
    figure += &match (gain, winner.baseline) {
        (Some(gain), Some(baseline)) => format!(", {gain}, over `{}`", baseline.case.configuration),
        _ => ", measured".to_owned(),
    };
    let alike: Vec<String> = candidates
        .iter()
        .filter(|row| row.id != winner.id && overlap(summary(row), summary(winner)))
        .map(|row| format!("`{}`", row.record.case.configuration))
        .collect();
    if !alike.is_empty() {
        figure += &format!(" (its interval overlaps that of {})", alike.join(", "));
    }
    let weight = gain.map_or(0.0, |gain| gain.ratio());
    Win { winner, candidates, figure, weight }
}

fn summary<'r>(row: &Compared<'r>) -> &'r Summary {
    let (_, series) = believed(row).expect("candidates are believed");
    &series.summary
}

/// Whether the medians' intervals overlap; without intervals nothing tells the two apart.
fn overlap(a: &Summary, b: &Summary) -> bool {
    a.median_interval
        .zip(b.median_interval)
        .is_none_or(|(a, b)| a.low_ns <= b.high_ns && b.low_ns <= a.high_ns)
}
