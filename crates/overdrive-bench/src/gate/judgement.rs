//! From what the blocks of a figure show to a verdict: pure, so that thousands of invented sessions
//! can be judged in a test.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::{Metric, Scale, TAIL_LIMIT};
use super::sequential::{ALPHA, Seen, decides_at};

/// How many standard errors a true effect lies beyond a limit that it passes four times in five.
const POWER: f64 = 0.841_621;

/// What the blocks of a case say.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Worse by more than 5 %, beyond what chance explains.
    Regressed,
    /// Neither a change nor its absence is shown.
    Undecided,
    /// Better by more than 5 %, beyond what chance explains.
    Improved,
    /// The interval lies within 5 % either way.
    Same,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regressed => "REGRESSED",
            Self::Undecided => "UNDECIDED",
            Self::Improved => "IMPROVED",
            Self::Same => "SAME",
        })
    }
}

/// A change with the interval that is valid at every look of its session, at 99 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// Worse over better: over 1, the current is worse. Of times, current over baseline.
    Ratio {
        /// The estimate.
        value: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// By how much the current is worse, in the figure's own unit.
    Difference {
        /// The estimate.
        value: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end.
        high: f64,
    },
}

impl Estimate {
    pub(super) fn of(seen: &Seen, scale: Scale) -> Self {
        match scale {
            Scale::Ratio => {
                Self::Ratio { value: seen.centre.exp(), low: seen.low.exp(), high: seen.high.exp() }
            }
            Scale::Difference(_) => {
                Self::Difference { value: seen.centre, low: seen.low, high: seen.high }
            }
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits =
            |low: f64, high: f64| crate::digits::decimals(Some((high - low) / 2.0)).clamp(2, 4);
        match *self {
            Self::Ratio { value, low, high } => {
                let digits = digits(low, high);
                write!(f, "{value:.digits$}x [{low:.digits$}, {high:.digits$}]")
            }
            Self::Difference { value, low, high } => {
                let digits = digits(low, high);
                write!(f, "worse by {value:.digits$} [{low:.digits$}, {high:.digits$}]")
            }
        }
    }
}

/// What stands against a verdict of a change, whatever its statistics.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Objection {
    /// Too many processes ran under a low clock.
    Throttled { low: usize, of: usize },
    /// Device cycles did not change with the time: the clock changed, not the work.
    CyclesDisagree { cycles: Estimate },
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

/// One figure of a case, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Its name, which ends in its unit: `median_ns`, `tokens_per_s`.
    pub name: String,
    /// The verdict.
    pub verdict: Verdict,
    /// How the current stands to the baseline.
    pub change: Estimate,
    /// p of the sequential signed-rank test after Holm's correction over all figures of the
    /// session.
    pub p: f64,
    /// The smallest true change for the worse that this session would have called a regression four
    /// times in five, in the unit of `change`.
    pub minimum_detectable: f64,
    /// Blocks behind it.
    pub blocks: usize,
    /// How many blocks in all would decide; absent where it is decided, and where no reasonable
    /// number would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_to_decide: Option<usize>,
    /// Median over the baseline's processes.
    pub baseline: f64,
    /// Median over the current's processes.
    pub current: f64,
}

/// The verdict of the statistics alone. `p` is corrected over the session.
pub(super) fn verdict(seen: &Seen, p: f64, metric: &Metric) -> Verdict {
    let same = metric.same();
    let differs = p <= ALPHA;
    if differs && seen.low > 0.0 && seen.centre > *same.end() {
        return Verdict::Regressed;
    }
    if differs && seen.high < 0.0 && seen.centre < *same.start() {
        return Verdict::Improved;
    }
    // Where a few processes of one side are far off, the centre hardly moves, the mean does, and
    // the test sees it.
    let is_lopsided = seen.p <= ALPHA && !same.contains(&seen.mean);
    let is_within = same.contains(&seen.low) && same.contains(&seen.high);
    if is_within && !is_lopsided { Verdict::Same } else { Verdict::Undecided }
}

/// Whether a figure that is not decided may let its case pass: of mean and tails, which scatter, an
/// interval wider than that of the median beside them is enough.
pub(super) fn is_bounded_tail(seen: &Seen, metric: &Metric) -> bool {
    metric.is_tail && seen.high <= TAIL_LIMIT.ln()
}

/// The smallest true change that would have been called a regression four times in five: far enough
/// from none for the interval, and over the limit by what the estimate scatters. On the scale of
/// the comparison.
pub(super) fn minimum_detectable(seen: &Seen, metric: &Metric) -> f64 {
    let error = seen.deviation / (seen.blocks as f64).sqrt();
    let half = (seen.high - seen.low) / 2.0;
    half.max(*metric.same().end()) + POWER * error
}

/// How many blocks in all would decide, if centre and noise stayed as they are.
pub(super) fn blocks_to_decide(seen: &Seen, metric: &Metric) -> Option<usize> {
    let off = seen.centre.abs();
    let limit = *metric.same().end();
    decides_at(seen.blocks, seen.deviation, |half| {
        off + half <= limit || (off > limit && off - half > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::metric::{LIMIT, MEAN, MEDIAN, metric};

    /// What is seen of blocks with this ratio in the centre, whose interval reaches so far either
    /// way.
    fn seen(ratio: f64, half: f64) -> Seen {
        let centre = ratio.ln();
        let p = if centre.abs() > half { 0.001 } else { 0.5 };
        let deviation = half / 3.0 * 20.0_f64.sqrt();
        Seen {
            centre,
            low: centre - half,
            high: centre + half,
            mean: centre,
            p,
            deviation,
            blocks: 20,
        }
    }

    #[test]
    fn each_verdict_has_its_place() {
        let metric = metric(MEDIAN).unwrap();
        for (ratio, half, p, expected) in [
            (1.07, 0.01, 0.002, Verdict::Regressed),
            (1.07, 0.01, 0.06, Verdict::Undecided),
            (1.07, 0.15, 0.002, Verdict::Undecided),
            (1.03, 0.01, 0.002, Verdict::Same),
            (1.0, 0.01, 0.5, Verdict::Same),
            (1.0, 0.2, 0.5, Verdict::Undecided),
            (1.048, 0.01, 0.002, Verdict::Undecided),
            (0.8, 0.01, 0.002, Verdict::Improved),
            (0.96, 0.02, 0.002, Verdict::Undecided),
        ] {
            assert_eq!(verdict(&seen(ratio, half), p, &metric), expected, "{ratio} {half} {p}");
        }
    }

    /// One process in ten takes three times as long: the centre is where it was, and nothing is the
    /// same.
    #[test]
    fn a_lopsided_difference_is_not_the_same() {
        let metric = metric(MEDIAN).unwrap();
        let lopsided = Seen { mean: 0.11, low: 0.001, ..seen(1.01, 0.02) };
        assert_eq!(
            verdict(&Seen { p: 0.001, ..lopsided.clone() }, 0.5, &metric),
            Verdict::Undecided
        );
        // Wild values on both sides move the mean too, and no test sees them.
        assert_eq!(verdict(&Seen { p: 0.3, ..lopsided }, 0.5, &metric), Verdict::Same);
    }

    #[test]
    fn what_is_detectable_lies_beyond_limit_and_noise() {
        let metric = metric(MEDIAN).unwrap();
        let at = |half: f64| minimum_detectable(&seen(1.0, half), &metric);
        assert!((at(0.0) - LIMIT.ln()).abs() < 1e-12);
        assert!((at(0.03) - LIMIT.ln() - POWER * 0.01).abs() < 1e-12);
        assert!((at(0.30) - 0.30 - POWER * 0.1).abs() < 1e-12);
    }

    #[test]
    fn the_blocks_that_would_decide_are_promised_only_within_reason() {
        let needed =
            |ratio: f64, half: f64| blocks_to_decide(&seen(ratio, half), &metric(MEDIAN).unwrap());
        assert!((22..60).contains(&needed(1.0, 0.06).unwrap()), "{:?}", needed(1.0, 0.06));
        assert_eq!(needed(LIMIT - 0.0001, 0.06), None, "a ratio at the limit stays undecided");
        assert!(needed(1.3, 0.4).unwrap() < 120);
    }

    #[test]
    fn tails_may_pass_at_a_wider_interval_and_medians_not() {
        assert!(is_bounded_tail(&seen(1.0, 0.15), &metric(MEAN).unwrap()));
        assert!(!is_bounded_tail(&seen(1.1, 0.15), &metric(MEAN).unwrap()));
        assert!(!is_bounded_tail(&seen(1.0, 0.15), &metric(MEDIAN).unwrap()));
    }
}
