//! The size and the configuration with the highest throughput.

use std::collections::BTreeSet;

use super::super::judged::{JudgedResults, JudgedRow};
use super::super::leaders::{believed, busiest};
use super::super::section;
use super::finding::{Finding, Topic};
use super::grouped::by;
use super::win::{Win, sentences};

/// The highest rate over all sizes of a workload. With a single size it is the fastest row again.
/// It is still reported where back ends compete, so that readers who look for throughput find the
/// winner.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let (measurement, series) = believed(judged, row)?;
        measurement.throughput()?.interval?;
        let items = measurement.work.as_ref()?.items.as_ref()?;
        let case = &row.record.case;
        let clock = (series.conditions.basis.to_string(), format!("{:?}", series.conditions.depth));
        Some((case.study.clone(), case.workload.name.clone(), items.name.clone(), clock))
    });
    let distinct = |candidates: &[&JudgedRow<'_>], of: fn(&JudgedRow<'_>) -> String| {
        candidates.iter().map(|row| of(row)).collect::<BTreeSet<_>>().len()
    };
    let wins = groups.into_values().filter_map(|candidates| {
        let sizes = distinct(&candidates, |row| row.record.case.workload.to_string());
        let backends = distinct(&candidates, |row| row.record.case.configuration.backend.clone());
        let lead = busiest(&candidates).filter(|_| sizes > 1 || backends > 1)?;
        let rate = lead.winner.measurement().and_then(section::throughput)?;
        let over = if sizes > 1 { " over its sizes" } else { "" };
        let figure = format!("{rate}, highest of {}{over}{}", candidates.len(), lead.doubt());
        Some(Win { winner: lead.winner, candidates, figure, weight: 0.0 })
    });
    sentences(Topic::Throughput, "the highest rate has", wins.collect())
}
