//! Which size and configuration handle most per second.

use std::collections::BTreeSet;

use super::super::judged::{Compared, Judged};
use super::group::{believed, by};
use super::win::{Win, least, sentences};
use super::{Finding, Topic};
use crate::digits;

/// The highest rate over all sizes of a workload. With a single size it is the fastest again, which is said where back ends
/// compete: who asks for throughput should find its winner by that name.
pub(super) fn rule(judged: &Judged<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let (measurement, series) = believed(row)?;
        measurement.items_per_second()?;
        let case = &row.record.case;
        let clock = (series.conditions.basis.to_string(), format!("{:?}", series.conditions.depth));
        Some((case.study.clone(), case.workload.name.clone(), unit(row).to_owned(), clock))
    });
    let sizes = |candidates: &[&Compared<'_>]| {
        candidates.iter().map(|row| &row.record.case.workload).collect::<BTreeSet<_>>().len()
    };
    let backends = |candidates: &[&Compared<'_>]| {
        candidates.iter().map(|row| &row.record.case.configuration.backend).collect::<BTreeSet<_>>().len()
    };
    let several = |candidates: &Vec<&Compared<'_>>| sizes(candidates) > 1 || backends(candidates) > 1;
    let wins = groups.into_values().filter(several).map(|candidates| {
        let winner = least(&candidates, |row| -rate(row));
        let shown = digits::rate(rate(winner), None, unit(winner));
        let over = if sizes(&candidates) > 1 { " over its sizes" } else { "" };
        let figure = format!("{shown}, highest of {}{over}, measured", candidates.len());
        Win { winner, candidates, figure, weight: 0.0 }
    });
    sentences(Topic::Throughput, "throughput", wins.collect())
}

fn rate(row: &Compared<'_>) -> f64 {
    row.measurement().and_then(|measurement| measurement.items_per_second()).unwrap_or(0.0)
}

fn unit<'r>(row: &Compared<'r>) -> &'r str {
    let items = row.measurement().and_then(|measurement| measurement.work.as_ref()?.items.as_ref());
    items.map_or("", |items| &items.name)
}
