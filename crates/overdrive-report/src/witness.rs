//! Who saw the memory of a call: exact counts alone, the same for every row that is compared.

use super::judged::JudgedRow;
use overdrive_bench::memory::{MemoryUse, Peak};

/// A witness of memory.
#[derive(Clone, Copy)]
pub(super) struct Witness {
    /// Its name.
    pub(super) name: &'static str,
    /// The bytes that a call added, where it saw them.
    pub(super) bytes: fn(&MemoryUse) -> Option<u64>,
}

/// The most telling first. The kernel's resident pages are not among them: they are the whole
/// process's, and nothing gives them an interval.
const WITNESSES: [Witness; 3] = [
    Witness {
        name: "device memory",
        bytes: |memory| memory.device.as_ref().map(Peak::added_bytes),
    },
    Witness { name: "planned arena", bytes: |memory| memory.planned_arena_bytes },
    // A plan takes its arena before any call, an engine's library during it: the sum is what either
    // works in.
    Witness {
        name: "arena and heap",
        bytes: |memory| {
            let arena = memory.planned_arena_bytes.unwrap_or(0);
            memory.heap.as_ref().map(|heap| arena + heap.added_bytes())
        },
    },
];

/// The first that has seen every one of the rows.
pub(super) fn witness(rows: &[&JudgedRow<'_>]) -> Option<Witness> {
    let sees =
        |witness: &Witness| rows.iter().all(|row| memory(row).and_then(witness.bytes).is_some());
    WITNESSES.into_iter().filter(|_| !rows.is_empty()).find(sees)
}

/// The known memory of a row's call.
pub(super) fn memory<'r>(row: &JudgedRow<'r>) -> Option<&'r MemoryUse> {
    row.measurement()?.memory.as_ref()
}
