//! Reasons in the samples not to believe a figure.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed, named};
use overdrive_bench::status::{Exclusion, StatusKind};

/// Every status but the one that has a rule of its own, put together by kind; those that block a
/// ratio first.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for kind in KINDS {
        let groups = by(judged, |row| detail(row, kind).map(|_| row.record.case.study.clone()));
        found.extend(groups.into_iter().map(|(study, rows)| {
            let said = |row: &&JudgedRow<'_>| {
                format!("{} ({})", named(row), detail(row, kind).unwrap_or_default())
            };
            let items: Vec<String> = rows.iter().map(said).collect();
            let effect = match kind.exclusion() {
                Exclusion::Ratio => "no ratio is claimed",
                Exclusion::Undecided => "only ratios that the other samples decide are claimed",
                Exclusion::Nothing => "read the figures with care",
            };
            let text = format!("{study}: {kind}, {effect}: {}.", listed(&items));
            Finding::new(Topic::Doubt, text, rows)
        }));
    }
    found
}

const KINDS: [StatusKind; 9] = [
    StatusKind::OneSampleDominates,
    StatusKind::ColdFirstSample,
    StatusKind::Scattered,
    StatusKind::Invalid,
    StatusKind::Suspect,
    StatusKind::Throttled,
    StatusKind::Noisy,
    StatusKind::Imprecise,
    StatusKind::Unsettled,
];

fn detail<'r>(row: &JudgedRow<'r>, kind: StatusKind) -> Option<&'r str> {
    let statuses = &row.measurement()?.statuses;
    statuses.iter().find(|status| status.kind == kind).map(|status| status.detail.as_str())
}
