//! From what the blocks of a figure show to a verdict: pure, so that thousands of invented sessions
//! can be judged in a test.

use std::fmt;

use overdrive_bench::verdicts::{Estimate, Verdict};

use super::metric::{Metric, Scale, TAIL_LIMIT};
use super::sequential::{ALPHA, Seen, decides_at};

/// Standard errors by which a true effect exceeds a limit that its estimate passes four times in
/// five.
const POWER: f64 = 0.841_621;

/// The observed change of a figure, on the scale that readers know.
pub(super) fn estimate(seen: &Seen, scale: Scale) -> Estimate {
    match scale {
        Scale::Ratio => {
            Estimate::Ratio { value: seen.centre.exp(), low: seen.low.exp(), high: seen.high.exp() }
        }
        Scale::Difference(_) => {
            Estimate::Difference { value: seen.centre, low: seen.low, high: seen.high }
        }
    }
}

/// A reason against the verdict of a change, whatever its statistics.
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
    // If a few processes of one side are far off, the centre hardly moves, the mean does, and the
    // test sees it.
    let is_lopsided = seen.p <= ALPHA && !same.contains(&seen.mean);
    let is_within = same.contains(&seen.low) && same.contains(&seen.high);
    if is_within && !is_lopsided { Verdict::Same } else { Verdict::Undecided }
}

/// Whether a figure that is not decided may let its case pass. The mean and the tails scatter, so
/// for them an interval wider than that of the median beside them is enough.
pub(super) fn is_bounded_tail(seen: &Seen, metric: &Metric) -> bool {
    metric.is_tail && seen.high <= TAIL_LIMIT.ln()
}

/// The smallest true change that would have been called a regression four times in five, on the
/// scale of the comparison. It exceeds the half-width of the interval, or the limit if that is
/// larger, by the scatter of the estimate.
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
    use crate::metric::{LIMIT, metric};
    use overdrive_bench::verdicts::{MEAN, MEDIAN};

    /// The observation of blocks with this ratio in the centre, and an interval of `half` either
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
