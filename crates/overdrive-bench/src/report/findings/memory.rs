//! Which configuration needs least memory.

use super::super::judged::{Compared, Judged};
use super::group::by;
use super::win::{Win, least, sentences};
use super::{Finding, Topic};
use crate::digits;
use crate::memory::{MemoryUse, Peak};

/// A witness of memory and what it is called; the first that has seen every candidate is asked.
type Witness = (&'static str, fn(&MemoryUse) -> Option<u64>);

/// Exact ones alone: the kernel counts resident pages of the whole process, and nothing gives that
/// an interval.
const WITNESSES: [Witness; 3] = [
    ("device memory", |memory| memory.device.as_ref().map(Peak::added_bytes)),
    ("planned arena", |memory| memory.planned_arena_bytes),
    // A plan takes its arena before any call, an engine's library during it: the sum is what either works in.
    ("arena and heap", |memory| {
        let arena = memory.planned_arena_bytes.unwrap_or(0);
        memory.heap.as_ref().map(|heap| arena + heap.added_bytes())
    }),
];

/// The smallest addition of one call on each workload, unless all need the same.
pub(super) fn rule(judged: &Judged<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        memory(row)?;
        Some((row.record.case.study.clone(), row.record.case.workload.clone()))
    });
    sentences(Topic::Memory, "the least memory has", groups.into_values().filter_map(win).collect())
}

fn win<'j, 'r>(candidates: Vec<&'j Compared<'r>>) -> Option<Win<'j, 'r>> {
    let (witness, bytes) = WITNESSES
        .into_iter()
        .find(|(_, bytes)| candidates.iter().all(|row| memory(row).and_then(bytes).is_some()))?;
    let added = |row: &Compared<'_>| memory(row).and_then(bytes).unwrap_or(u64::MAX);
    let winner = least(&candidates, |row| added(row) as f64);
    let most = least(&candidates, |row| -(added(row) as f64));
    (added(winner) < added(most)).then(|| {
        let figure = format!(
            "a call adds {} ({witness}), least of {}; `{}` adds {}, most",
            digits::bytes(added(winner)),
            candidates.len(),
            most.record.case.configuration,
            digits::bytes(added(most))
        );
        Win { winner, figure, weight: (added(most) - added(winner)) as f64, candidates }
    })
}

fn memory<'r>(row: &Compared<'r>) -> Option<&'r MemoryUse> {
    row.measurement()?.memory.as_ref()
}
