//! Rows put together by what they share, and how they are named in a sentence.

use std::collections::BTreeMap;

use super::super::judged::{Compared, Judged};
use crate::record::Measurement;
use crate::series::Series;

/// How many of a list are spelt out.
pub(super) const SHOWN: usize = 3;

/// Rows by key, those without one left out; keys ascending, rows in the order of the records.
pub(super) fn by<'j, 'r, K: Ord>(
    judged: &'j Judged<'r>,
    key: impl Fn(&Compared<'r>) -> Option<K>,
) -> BTreeMap<K, Vec<&'j Compared<'r>>> {
    let mut groups: BTreeMap<K, Vec<&Compared<'r>>> = BTreeMap::new();
    for row in &judged.rows {
        if let Some(key) = key(row) {
            groups.entry(key).or_default().push(row);
        }
    }
    groups
}

/// The latency of a row that may be recommended: outputs agree, and nothing speaks against the samples.
pub(super) fn believed<'r>(row: &Compared<'r>) -> Option<(&'r Measurement, &'r Series)> {
    let measurement = row.measurement()?;
    let agrees = measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds());
    let series = measurement.latency.as_ref()?;
    (agrees && measurement.blocks().next().is_none()).then_some((measurement, series))
}

/// `configuration` on `workload`.
pub(super) fn named(row: &Compared<'_>) -> String {
    format!("`{}` on `{}`", row.record.case.configuration, row.record.case.workload)
}

/// The first items of a list, and how many more there are.
pub(super) fn listed(items: &[String]) -> String {
    let shown = items[..items.len().min(SHOWN)].join("; ");
    match items.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// `1 other`, `2 others`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
