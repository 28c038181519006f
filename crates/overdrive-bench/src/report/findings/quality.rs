//! Which configuration is most accurate, and which makes the smallest file.

use super::super::judged::{Compared, Judged};
use super::group::{by, counted};
use super::win::{Win, least, sentences};
use super::{Finding, Topic};

/// Quantities that say how good outputs are, and the sign that makes less better.
const METRICS: [(&str, f64); 5] =
    [("top1_percent", -1.0), ("accuracy", -1.0), ("cosine", -1.0), ("perplexity", 1.0), ("loss", 1.0)];
/// The quantity that says how large a model is on disk.
pub(super) const FILE_BYTES: &str = "file_bytes";

/// The best by each metric on each workload, of equally good ones the smallest; and the smallest of all.
pub(super) fn rule(judged: &Judged<'_>) -> Vec<Finding> {
    // What was imported was measured by others.
    let how = if judged.results.imported.is_some() { "reported" } else { "measured" };
    let mut found = Vec::new();
    for (metric, sign) in METRICS {
        let wins = candidates(judged, metric).filter_map(|candidates| {
            let value = |row: &Compared<'_>| quantity(row, metric).unwrap_or(f64::NAN);
            let best = value(least(&candidates, |row| sign * value(row)));
            let equal: Vec<&Compared<'_>> =
                candidates.iter().copied().filter(|row| value(row) == best).collect();
            if equal.len() == candidates.len() {
                return None;
            }
            let winner = least(&equal, |row| quantity(row, FILE_BYTES).unwrap_or(f64::INFINITY));
            let others = match equal.len() - 1 {
                0 => String::new(),
                others => format!(" with {}", counted(others, "other")),
            };
            let figure = format!("{metric} {}, best of {}{others}, {how}", shown(best), candidates.len());
            Some(Win { winner, candidates, figure, weight: 0.0 })
        });
        found.extend(sentences(Topic::Quality, &format!("quality ({metric})"), wins.collect()));
    }
    let wins = candidates(judged, FILE_BYTES).filter_map(|candidates| {
        let bytes = |row: &Compared<'_>| quantity(row, FILE_BYTES).unwrap_or(f64::INFINITY);
        let winner = least(&candidates, bytes);
        let alone = candidates.iter().filter(|row| bytes(row) == bytes(winner)).count() == 1;
        let quality = METRICS.iter().find_map(|(metric, _)| Some((metric, quantity(winner, metric)?)));
        let quality =
            quality.map_or(String::new(), |(metric, value)| format!(" at {metric} {}", shown(value)));
        let figure = format!("{} B{quality}, smallest of {}, {how}", bytes(winner), candidates.len());
        alone.then_some(Win { winner, candidates, figure, weight: 0.0 })
    });
    found.extend(sentences(Topic::Quality, "size", wins.collect()));
    found
}

/// The rows of each workload that have this quantity, two or more.
fn candidates<'j, 'r>(
    judged: &'j Judged<'r>,
    name: &str,
) -> impl Iterator<Item = Vec<&'j Compared<'r>>> + use<'j, 'r> {
    let groups = by(judged, |row| {
        quantity(row, name)?;
        Some((row.record.case.study.clone(), row.record.case.workload.clone()))
    });
    groups.into_values().filter(|candidates| candidates.len() > 1)
}

/// A figure to the sixth decimal: what is behind it is in the records.
fn shown(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// A quantity of a row.
pub(super) fn quantity(row: &Compared<'_>, name: &str) -> Option<f64> {
    row.measurement()?.quantities.get(name).copied()
}
