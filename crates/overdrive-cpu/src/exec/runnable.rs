//! `Runnable`: a step compiled for this CPU, or why there is none.

use crate::slots::SlotTable;
use crate::threads::Pool;

/// A compiled step.
pub(crate) trait Runnable: Send + Sync {
    /// Does the work, on as many threads as the pool has. The table holds the addresses of all
    /// slots that the step reads and writes.
    fn run(&self, pool: &Pool, slots: &SlotTable);

    /// Bytes that the step holds in addition to its slots in the plan, also between calls.
    fn workspace_bytes(&self) -> usize {
        0
    }
}

/// Why a step cannot be compiled; the caller knows its name and scope.
#[derive(Debug)]
pub(crate) struct Unsupported(String);

impl Unsupported {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    pub(super) fn into_reason(self) -> String {
        self.0
    }
}
