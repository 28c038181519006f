//! How a run samples, and when it ends.

use crate::Allowance;
use overdrive_bench::clock::Clock;
use overdrive_bench::failure::Failure;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::{Runner, Stop};
use overdrive_bench::series::Depth;

/// How to sample, and when to stop.
#[derive(Clone)]
pub struct Sampling<'a> {
    /// Time source.
    pub clock: &'a dyn Clock,
    /// How long to sample and when to stop.
    pub rules: Rules,
    /// Seed of inputs and of the order of cases.
    pub seed: u64,
    /// When the study under way should have ended, on `clock`; a workload that would begin later is
    /// skipped.
    pub deadline_ns: Option<u64>,
    /// Additional time that engines and frameworks may spend.
    pub allowance: &'a Allowance,
    /// Looked at between steps.
    pub stop: Stop,
}

impl<'a> Sampling<'a> {
    /// By these rules and without a deadline.
    pub fn new(clock: &'a dyn Clock, rules: Rules, allowance: &'a Allowance) -> Self {
        Self { clock, rules, seed: 1, deadline_ns: None, allowance, stop: Stop::default() }
    }

    /// A runner under these rules.
    pub fn runner(&self) -> Runner<'a> {
        Runner::new(self.clock, self.rules.clone(), self.seed).with_stop(self.stop.clone())
    }

    /// True for `--quick`: screening, no verdict.
    pub fn is_quick(&self) -> bool {
        self.rules.depth == Depth::Screening
    }

    /// Why no further workload begins, if none does.
    pub fn over(&self) -> Option<String> {
        if self.stop.is_requested() {
            return Some("interrupted".to_owned());
        }
        let own_ns = self.clock.now_ns().saturating_sub(self.allowance.spent_ns());
        let late = self.deadline_ns.is_some_and(|deadline| own_ns > deadline);
        late.then(|| {
            "the study's share of the time that --quick has was used up; run without it".to_owned()
        })
    }

    /// Runs the preparation of an engine or framework, which is charged to its own allowance.
    pub(crate) fn at_own_expense<T>(
        &self,
        who: &str,
        ready: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.allowance.check(who)?;
        let start = self.clock.now_ns();
        let outcome = ready();
        self.allowance.charge(who, self.clock.now_ns() - start);
        outcome
    }
}
