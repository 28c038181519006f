//! Cases without a figure, and why: wrong outputs first, then everything else.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed, named};
use overdrive_bench::failure::FailureKind;

/// A sentence for each difference to the reference.
pub(super) fn incorrect(judged: &JudgedResults<'_>) -> Vec<Finding> {
    of(judged, Topic::Incorrect, |kind| kind == FailureKind::Incorrect)
}

/// A sentence for each other reason.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    of(judged, Topic::Stopped, |kind| kind != FailureKind::Incorrect)
}

fn of(
    judged: &JudgedResults<'_>,
    topic: Topic,
    is_of: impl Fn(FailureKind) -> bool,
) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let failure = row.record.outcome.failure().filter(|failure| is_of(failure.kind))?;
        Some((row.record.case.study.clone(), failure.kind, failure.reason.clone()))
    });
    let sentence = |((study, kind, reason), rows): ((String, _, String), Vec<&JudgedRow<'_>>)| {
        let items: Vec<String> = rows.iter().map(|row| named(row)).collect();
        let text = format!("{study}: {kind}, no figure: {}: {reason}", listed(&items));
        Finding::new(topic, text, rows)
    };
    groups.into_iter().map(sentence).collect()
}
