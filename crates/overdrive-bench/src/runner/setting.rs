//! The conditions that every subject of a session is measured under.

use crate::clock::{Clock, Timer};
use crate::rules::Rules;
use overdrive_process::Stop;

/// Clock, rules and seed of a runner.
pub(super) struct Setting<'a> {
    pub(super) clock: &'a dyn Clock,
    /// The clock's cost and grain.
    pub(super) timer: Timer,
    pub(super) rules: Rules,
    /// The first of the seeds on which outputs are compared.
    pub(super) seed: u64,
    pub(super) stop: Stop,
}
