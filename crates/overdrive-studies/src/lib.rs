//! What we measure: one file per study.
//!
//! A study is given the devices it may use and leaves records; it prints nothing and knows no back end by name.
//! Invariant: every variant of a comparison runs in one session, in alternation, and is checked against the f64
//! reference before its time counts.

mod compilation;
mod context;
mod cumulative;
mod kernels;
mod session;
mod workload;

pub use context::{Context, Device, Matmul, MatmulPeer, Progress};
pub use session::{Entry, measure};
pub use workload::Workload;

/// A set of cases with one question behind them.
pub trait Study: Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;
    /// The question, in a sentence.
    fn summary(&self) -> &'static str;
    /// Share of the time that `--quick` has, in seconds.
    fn quick_seconds(&self) -> u64;
    /// Measures; appends records, ladders and notes.
    fn run(&self, context: &Context<'_>, results: &mut overdrive_bench::results::Results);
}

/// Every study, in the order in which `overdrive run` takes them.
pub const STUDIES: &[&dyn Study] = &[&kernels::Kernels, &compilation::Compilation, &cumulative::Cumulative];
