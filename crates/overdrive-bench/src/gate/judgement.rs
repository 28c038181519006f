//! From the log ratios of a case's blocks to a verdict: pure, so that thousands of invented sessions can be judged
//! in a test.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::student_quantile;

/// Blocks that every case gets first.
pub const SCREENING_BLOCKS: usize = 3;
/// Fresh blocks that judge a candidate, at least: with ten the sign-flip test can reach 0.002, which is under
/// 0.05 after Holm's correction for 25 candidates. With more candidates there are more blocks.
pub const JUDGING_BLOCKS: usize = 10;
/// A case is a candidate when its screening is slower by more than this.
pub const CANDIDATE: f64 = 1.03;
/// Slower by more than this is a regression; within it either way is the same.
pub const LIMIT: f64 = 1.05;
/// Level of the test, after Holm's correction over all candidates of the session.
pub const ALPHA: f64 = 0.05;
/// The chance with which the minimum detectable effect would be detected.
const POWER: f64 = 0.8;
/// Beyond so many blocks nothing is promised: the noise of another day is not that of this one.
const MOST_BLOCKS: usize = 1000;

/// What the times of a case say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Slower by more than 5 %, beyond what chance explains.
    Regressed,
    /// Neither a regression nor its absence is shown.
    Ambiguous,
    /// A slowdown over 5 % is excluded, a gain over 5 % is not.
    NotSlower,
    /// The 90 % interval lies within 5 % either way.
    Same,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regressed => "REGRESSED",
            Self::Ambiguous => "AMBIGUOUS",
            Self::NotSlower => "NOT SLOWER",
            Self::Same => "SAME",
        })
    }
}

/// What stands against calling a slower case a regression, whatever its statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Objection {
    /// Too many processes ran under a low clock.
    Throttled {
        /// Processes under a low clock.
        low: usize,
        /// All of them.
        of: usize,
    },
    /// Device cycles did not grow with the time: the clock changed, not the work.
    CyclesDisagree {
        /// Ratio of cycles with its 95 % interval.
        cycles: Estimate,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttled { low, of } => {
                write!(f, "throttled: {low} of {of} processes ran under a low clock")
            }
            Self::CyclesDisagree { cycles } => {
                write!(f, "device cycles are {cycles}: the clock changed, not the work")
            }
        }
    }
}

/// A ratio with its 95 % t-interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Current over baseline: over 1, the current takes longer.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = crate::digits::decimals(Some((self.high - self.low) / 2.0)).clamp(2, 4);
        write!(f, "{:.digits$}x [{:.digits$}, {:.digits$}]", self.ratio, self.low, self.high)
    }
}

/// Mean and spread of a case's blocks, in logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    mean: f64,
    deviation: f64,
    blocks: usize,
}

impl Spread {
    /// Of at least two blocks; one has no spread.
    pub fn of(log_ratios: &[f64]) -> Option<Self> {
        let blocks = log_ratios.len();
        if blocks < 2 {
            return None;
        }
        let mean = log_ratios.iter().sum::<f64>() / blocks as f64;
        let squares: f64 = log_ratios.iter().map(|log| (log - mean).powi(2)).sum();
        Some(Self { mean, deviation: (squares / (blocks - 1) as f64).sqrt(), blocks })
    }

    /// The ratio with its 95 % interval.
    pub fn estimate(&self) -> Estimate {
        let (low, high) = self.interval(0.95);
        Estimate { ratio: self.mean.exp(), low, high }
    }

    /// The t-interval of the ratio.
    fn interval(&self, confidence: f64) -> (f64, f64) {
        let half = half_width(confidence, self.deviation, self.blocks);
        ((self.mean - half).exp(), (self.mean + half).exp())
    }

    /// The smallest true ratio that `blocks` blocks of this noise would call a regression four times in five: far
    /// enough from 1 for the test, and over the limit by what the estimate scatters.
    pub fn minimum_detectable(&self, blocks: usize) -> f64 {
        let error = self.deviation / (blocks as f64).sqrt();
        let any_change =
            (student_quantile(1.0 - ALPHA / 2.0, blocks - 1) + student_quantile(POWER, blocks - 1)) * error;
        let over_limit = LIMIT.ln() + student_quantile(POWER, blocks - 1) * error;
        any_change.max(over_limit).exp()
    }

    /// How many blocks would decide, if mean and noise stayed as they are; `None` where that would not be within
    /// reason, as for a true ratio at the limit itself.
    pub fn blocks_to_decide(&self) -> Option<usize> {
        (self.blocks + 1..=MOST_BLOCKS).find(|&blocks| {
            let excludes_one = self.mean - half_width(0.95, self.deviation, blocks) > 0.0;
            let below_limit = self.mean + half_width(0.90, self.deviation, blocks) <= LIMIT.ln();
            (self.mean > LIMIT.ln() && excludes_one && blocks >= JUDGING_BLOCKS) || below_limit
        })
    }

    /// The verdict. `p` is the adjusted p of fresh blocks; without it these are screening blocks, which acquit but
    /// never convict.
    pub fn verdict(&self, p: Option<f64>, objections: &[Objection]) -> Verdict {
        let slower = self.mean > LIMIT.ln() && self.interval(0.95).0 > 1.0;
        if slower && p.is_some_and(|p| p < ALPHA) {
            return if objections.is_empty() { Verdict::Regressed } else { Verdict::Ambiguous };
        }
        match self.interval(0.90) {
            (_, high) if high > LIMIT => Verdict::Ambiguous,
            (low, _) if low < 1.0 / LIMIT => Verdict::NotSlower,
            _ => Verdict::Same,
        }
    }
}

fn half_width(confidence: f64, deviation: f64, blocks: usize) -> f64 {
    student_quantile((1.0 + confidence) / 2.0, blocks - 1) * deviation / (blocks as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of this mean ratio and exactly this deviation of the log.
    fn spread(ratio: f64, deviation: f64, blocks: usize) -> Spread {
        Spread { mean: ratio.ln(), deviation, blocks }
    }

    #[test]
    fn each_verdict_has_its_place() {
        for (ratio, deviation, p, verdict) in [
            (1.07, 0.01, Some(0.002), Verdict::Regressed),
            (1.07, 0.01, Some(0.06), Verdict::Ambiguous),
            (1.07, 0.01, None, Verdict::Ambiguous),
            (1.049, 0.01, Some(0.002), Verdict::Ambiguous),
            (1.03, 0.01, Some(0.002), Verdict::Same),
            (1.07, 0.15, Some(0.002), Verdict::Ambiguous),
            (1.0, 0.01, None, Verdict::Same),
            (1.0, 0.2, None, Verdict::Ambiguous),
            (0.8, 0.01, None, Verdict::NotSlower),
        ] {
            assert_eq!(spread(ratio, deviation, 10).verdict(p, &[]), verdict, "{ratio} {deviation} {p:?}");
        }
        let throttled = Objection::Throttled { low: 9, of: 40 };
        assert_eq!(spread(1.2, 0.01, 10).verdict(Some(0.002), &[throttled]), Verdict::Ambiguous);
    }

    /// The table of the regression page: any change that ten blocks see, and what the limit adds.
    #[test]
    fn the_minimum_detectable_effect_is_that_of_the_table() {
        for (deviation, percent) in [(0.005, 5.15), (0.01, 5.30), (0.02, 5.59), (0.03, 5.88), (0.10, 10.46)] {
            let found = 100.0 * (spread(1.0, deviation, 3).minimum_detectable(10) - 1.0);
            assert!((found - percent).abs() < 0.01, "at {deviation}: {found}");
        }
    }

    #[test]
    fn the_blocks_that_would_decide_are_promised_only_within_reason() {
        assert_eq!(spread(1.07, 0.02, 3).blocks_to_decide(), Some(10));
        let noisy = spread(1.0, 0.10, 10).blocks_to_decide().unwrap();
        assert!((12..20).contains(&noisy), "{noisy}");
        assert_eq!(spread(LIMIT, 0.02, 10).blocks_to_decide(), None, "a ratio at the limit stays undecided");
        assert_eq!(Spread::of(&[0.1]), None);
    }

    #[test]
    fn the_interval_is_student_s() {
        let estimate = Spread::of(&[0.0, 0.01, 0.02]).unwrap().estimate();
        let half = 4.302_652_7 * 0.01 / 3.0_f64.sqrt();
        assert!((estimate.ratio.ln() - 0.01).abs() < 1e-12);
        assert!(
            (estimate.high.ln() - 0.01 - half).abs() < 1e-8 && (0.01 - estimate.low.ln() - half).abs() < 1e-8
        );
    }
}
