//! Cases without a figure, and why.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed, named};

/// A sentence for each reason.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let failure = row.record.outcome.failure()?;
        Some((row.record.case.study.clone(), failure.kind, failure.reason.clone()))
    });
    let sentence = |((study, kind, reason), rows): ((String, _, String), Vec<&JudgedRow<'_>>)| {
        let items: Vec<String> = rows.iter().map(|row| named(row)).collect();
        let text = format!("{study}: {kind}, no figure: {}: {reason}", listed(&items));
        Finding::new(Topic::Stopped, text, rows)
    };
    groups.into_iter().map(sentence).collect()
}
