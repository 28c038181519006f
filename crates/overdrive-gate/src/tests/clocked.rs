//! The whole way from calls on an injected clock to an exit code: runner, records, blocks,
//! verdicts.

use std::time::Duration;

use super::invented::{PROCESS, session};
use crate::Processes;
use crate::read::observations;
use crate::session::ProcessRequest;
use overdrive_bench::exit::Exit;
use overdrive_bench::failure::Failure;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::Runner;
use overdrive_bench::testing::{Synthetic, SyntheticClock, record, results};
use overdrive_bench::verdicts::{Observations, Side, Verdicts};

/// Processes in which each call costs what a function of side, seed and call says.
struct Clocked<F>(F, Duration);

impl<F: Fn(Side, u64, u64) -> u64> Processes for Clocked<F> {
    fn elapsed(&self) -> Duration {
        self.1
    }

    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure> {
        self.1 += PROCESS;
        let clock = SyntheticClock::default();
        let cost = |call| (self.0)(side, request.process as u64, call);
        let outcome = Runner::new(&clock, Rules::quick(), request.seed)
            .measure(&mut Synthetic::new(&clock, cost));
        let mut found = results();
        found.records.push(record("compile", &[1000; 6]));
        found.records[0].outcome = outcome;
        Ok(observations(&found))
    }
}

fn gated(cost: impl Fn(Side, u64, u64) -> u64) -> Verdicts {
    session(&mut Clocked(cost, Duration::ZERO))
}

const MS: u64 = 1_000_000;

/// Differs by up to 1 % from process to process, and a little from call to call.
fn noisy(process: u64, call: u64) -> u64 {
    MS + process * 7919 % 10_000 + call * 2_654_435_761 % 1_000
}

#[test]
fn a_slower_program_is_seen_and_a_slow_first_call_is_not_its_time() {
    let found = gated(|side, process, call| match (side, call) {
        (Side::Current, 0) => 300 * MS,
        _ => noisy(process, call),
    });
    assert_eq!(found.exit(), Exit::Fine, "{found:?}");
    let found = gated(|side, process, call| {
        noisy(process, call) * if side == Side::Current { 110 } else { 100 } / 100
    });
    assert_eq!(found.exit(), Exit::Regression, "{found:?}");
}

#[test]
fn a_back_end_that_panics_is_a_failed_case_and_a_non_zero_exit() {
    let found = gated(|side, process, call| match (side, call) {
        (Side::Current, 12) => panic!("index out of range"),
        _ => noisy(process, call),
    });
    assert_eq!((found.exit(), found.cases[0].word().as_str()), (Exit::Harness, "FAILED"));
    assert!(found.cases[0].reasons()[0].contains("panicked: index out of range"), "{found:?}");
}
