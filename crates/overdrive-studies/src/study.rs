//! What a study is, and the list of them.

use crate::Context;
use crate::{compilation, cumulative, kernels, quantization};
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

/// Every study, in the order in which `overdrive run` takes them.
pub const STUDIES: &[&dyn Study] = &[
    &kernels::Kernels,
    &compilation::Compilation,
    &quantization::Quantization,
    &cumulative::Cumulative,
];
