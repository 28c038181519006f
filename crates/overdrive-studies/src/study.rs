//! The trait of a study.

use crate::Context;
use overdrive_bench::results::Results;

/// A set of cases with one question behind them.
pub trait Study: Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;
    /// The question, in a sentence.
    fn summary(&self) -> &'static str;
    /// Share of the time that `--quick` has, in seconds.
    fn quick_seconds(&self) -> u64;
    /// Measures; appends records, ladders and notes.
    fn run(&self, context: &Context<'_>, results: &mut Results);
}
