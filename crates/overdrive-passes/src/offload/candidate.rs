//! A state that can wait outside of main memory, and the steps of a call that touch it.

use std::ops::Range;

/// A state that can wait elsewhere.
pub(super) struct OffloadCandidate {
    /// Its place among the updates of the plan.
    pub(super) update: usize,
    pub(super) bytes: u64,
    /// The steps that touch it.
    pub(super) steps: Range<usize>,
}
