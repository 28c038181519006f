//! Blocks of four fresh processes: the order they run in, and the one number that each case gets from a block.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::observation::{Observations, Observed};

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// What is compared with: A.
    Baseline,
    /// What is judged: B.
    Current,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "baseline",
            Self::Current => "current",
        })
    }
}

/// The order of a block's processes. Within a block linear drift cancels; alternating the two orders keeps
/// whatever favours the outer or the inner pair from favouring one side.
pub fn order(block: usize) -> [Side; 4] {
    use Side::{Baseline as A, Current as B};
    if block.is_multiple_of(2) { [A, B, B, A] } else { [B, A, A, B] }
}

/// What the processes of a block said, in the order in which they ran; fewer than four after an interruption.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    /// Side and observations of each process.
    pub runs: Vec<(Side, Observations)>,
}

impl Block {
    /// What each process said of `case`, in order, with its side; a process without a figure is left out.
    pub fn observed<'b>(&'b self, case: &str) -> impl Iterator<Item = (Side, &'b Observed)> {
        self.runs.iter().filter_map(move |(side, said)| Some((*side, said.get(case)?.as_ref().ok()?)))
    }

    /// Mean log of `read` over the current's processes less that over the baseline's: over 0, the current is
    /// slower. `None` unless all four processes have a figure: with three, drift no longer cancels.
    pub fn log_ratio(&self, case: &str, read: impl Fn(&Observed) -> Option<f64>) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0);
        for (side, observed) in self.observed(case) {
            let log = read(observed)?.ln();
            sum += if side == Side::Current { log } else { -log };
            count += 1;
        }
        (count == 4).then_some(sum / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(order: [Side; 4], time: impl Fn(usize, Side) -> f64) -> Block {
        let run = |(position, side): (usize, Side)| {
            let observed = Observed::of_time(time(position, side));
            (side, Observations::from([("case".to_owned(), Ok(observed))]))
        };
        Block { runs: order.into_iter().enumerate().map(run).collect() }
    }

    #[test]
    fn exponential_drift_cancels_in_either_order() {
        for index in 0..2 {
            let drifting = block(order(index), |position, side| {
                1.1_f64.powi(position as i32) * if side == Side::Current { 1.07 } else { 1.0 }
            });
            let ratio = drifting.log_ratio("case", |o| o.median_ns).unwrap();
            assert!((ratio - 1.07_f64.ln()).abs() < 1e-12, "{ratio}");
        }
    }

    #[test]
    fn an_incomplete_block_has_no_datum() {
        let mut cut = block(order(0), |_, _| 1.0);
        assert_eq!(cut.log_ratio("case", |o| o.median_ns), Some(0.0));
        assert_eq!(cut.log_ratio("other", |o| o.median_ns), None);
        assert_eq!(cut.log_ratio("case", |o| o.cycles), None);
        cut.runs.pop();
        assert_eq!(cut.log_ratio("case", |o| o.median_ns), None);
    }
}
