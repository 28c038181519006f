//! The cost of the harness itself. The harness measures it on a call that does nothing, and
//! publishes it with every run.

use crate::failure::Failure;
use crate::runner::Runner;
use crate::series::Series;
use crate::subject::Function;

/// Time per call of an empty closure: what every host time per call contains of the harness's own
/// loop. The cost of the clock is in the series' [`Timer`](crate::clock::Timer), spread over all
/// calls of a sample.
///
/// # Errors
/// When the clock does not advance.
pub fn overhead(runner: &Runner<'_>) -> Result<Series, Failure> {
    let outcome = runner.measure(&mut Function::new(|_| (), |_| Ok(None)));
    match outcome.failure() {
        Some(failure) => Err(failure.clone()),
        None => {
            let latency = outcome.measurement().and_then(|measurement| measurement.latency.clone());
            Ok(latency.expect("a runner's measurement has a latency"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::rules::Rules;
    use std::cell::Cell;

    /// A clock that advances by 25 ns at each reading: then all that a sample holds is the one
    /// reading at its end.
    struct Costly(Cell<u64>);

    impl Clock for Costly {
        fn name(&self) -> &'static str {
            "costly"
        }

        fn now_ns(&self) -> u64 {
            self.0.set(self.0.get() + 25);
            self.0.get()
        }
    }

    #[test]
    fn the_clocks_cost_is_spread_over_the_calls() {
        let clock = Costly(Cell::new(0));
        let series = overhead(&Runner::new(&clock, Rules::quick(), 0)).unwrap();
        assert_eq!(series.conditions.timer.overhead_ns, 25);
        let per_call = series.summary.median_ns;
        assert!(
            (per_call - 25.0 / series.conditions.calls_per_sample as f64).abs() < 1e-12,
            "{per_call}"
        );
    }

    #[test]
    fn an_empty_call_is_measured_on_the_real_clock() {
        let clock = SystemClock::new();
        let series = overhead(&Runner::new(&clock, Rules::quick(), 0)).unwrap();
        assert!(series.conditions.calls_per_sample > 100, "an empty call is batched");
        assert!(series.summary.median_ns > 0.0);
    }
}
