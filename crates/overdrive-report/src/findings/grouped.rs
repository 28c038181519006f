//! Rows put together by what they share, and how they are named in a sentence.

use std::collections::BTreeMap;

use super::super::judged::{JudgedResults, JudgedRow};

/// How many of a list are spelt out.
pub(super) const SHOWN: usize = 3;

/// Rows by key, those without one left out; keys ascending, rows in the order of the records.
pub(super) fn by<'j, 'r, K: Ord>(
    judged: &'j JudgedResults<'r>,
    key: impl Fn(&JudgedRow<'r>) -> Option<K>,
) -> BTreeMap<K, Vec<&'j JudgedRow<'r>>> {
    let mut groups: BTreeMap<K, Vec<&JudgedRow<'r>>> = BTreeMap::new();
    for row in &judged.rows {
        if let Some(key) = key(row) {
            groups.entry(key).or_default().push(row);
        }
    }
    groups
}

/// `configuration` on `workload`.
pub(in super::super) fn named(row: &JudgedRow<'_>) -> String {
    format!("`{}` on `{}`", row.label, row.record.case.workload)
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
