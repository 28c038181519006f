//! The only way to say that something is faster.
//!
//! A [`Speedup`] is built from two records, and only where all of this holds:
//! - both have the same workload;
//! - both ran, and both outputs agree with the reference;
//! - neither is blocked by its own samples;
//! - both have the same clock and the same depth of measurement.
//!
//! Otherwise there is a [`NoClaim`] with every reason, and no number in it.
//!
//! Long because every reason against a comparison is named, shown and decided in one place.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::digits::{decimals, time};
use crate::failure::Failure;
use crate::measurement::Measurement;
use crate::record::Record;
use crate::reported::{Kept, Reported};
use crate::runner::SUSPECT_RATIO;
use crate::series::{Basis, Depth, Series};
use crate::statistics::{Interval, ratio_of_medians};
use crate::status::{Exclusion, Status, StatusKind, gate, settled};

/// How far the second method may lie from the ratio that it confirms.
const CONFIRMATION: f64 = 0.10;

/// A measured ratio of two times: over 1, the variant is faster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speedup {
    baseline: String,
    variant: String,
    ratio: f64,
    low: f64,
    high: f64,
    counts: [usize; 2],
    depth: Depth,
    basis: Basis,
    /// Medians of baseline and variant by the host's clock, where one of them has a device's clock
    /// and the other has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_medians_ns: Option<[f64; 2]>,
    warnings: Vec<Status>,
}

/// Why no gain is claimed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("no claim of `{variant}` over `{baseline}`: {}", join(.reasons))]
pub struct NoClaim {
    /// Id of the baseline's case.
    pub baseline: String,
    /// Id of the variant's case.
    pub variant: String,
    /// Every reason that was found.
    pub reasons: Vec<Reason>,
}

/// One reason against a claim.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Reason {
    /// The two computed different things.
    #[error("the workloads differ: {baseline} and {variant}")]
    DifferentWorkloads {
        /// The baseline's.
        baseline: String,
        /// The variant's.
        variant: String,
    },
    /// One of the two did not run.
    #[error("{side} {failure}")]
    DidNotRun {
        /// Which.
        side: Role,
        /// How it ended.
        failure: Failure,
    },
    /// One of the two was not timed.
    #[error("{side} was not timed")]
    NotTimed {
        /// Which.
        side: Role,
    },
    /// Another tool timed one of the two.
    #[error("{side} is what {tool} reports ({kept})")]
    OnlyReported {
        /// Which.
        side: Role,
        /// The tool.
        tool: String,
        /// The samples that it kept.
        kept: Kept,
    },
    /// Outputs of one of the two were never compared with a reference.
    #[error("{side}'s outputs were not compared with a reference")]
    NotVerified {
        /// Which.
        side: Role,
    },
    /// The status gate blocks one of the two.
    #[error("{side} is {status}")]
    Blocked {
        /// Which.
        side: Role,
        /// By what.
        status: Status,
    },
    /// Host time against device time, of calls that the host timed in another way.
    #[error("they were timed on different clocks, in sessions of their own")]
    DifferentClocks,
    /// A screening against a full measurement: their warm-ups differ.
    #[error("one is a quick look and the other a full measurement, so their warm-ups differ")]
    DifferentDepths,
    /// Cold caches against warm ones.
    #[error("{side} found its data in the cache and the other did not")]
    DifferentCaches {
        /// The side that was warm.
        side: Role,
    },
    /// Too few samples for an interval.
    #[error("{counts:?} samples are too few for an interval")]
    TooFewSamples {
        /// Samples of baseline and variant.
        counts: [usize; 2],
    },
    /// Over 10x and not confirmed.
    #[error("{ratio:.1}x is suspect: {second}")]
    Suspect {
        /// The ratio of medians.
        ratio: f64,
        /// The result of the second method.
        second: String,
    },
    /// A ladder of fewer than two steps, or gains that do not start where the ladder does.
    #[error("{why}")]
    NoLadder {
        /// The fault of the steps.
        why: String,
    },
}

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side to compare with.
    Baseline,
    /// The compared side.
    Variant,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "the baseline",
            Self::Variant => "the variant",
        })
    }
}

/// The word for a gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Over 1.5x.
    Excellent,
    /// 1.2x to 1.5x.
    Good,
    /// 1.0x to 1.2x.
    Measured,
    /// Under 1.0x.
    Investigate,
    /// The interval includes 1.
    Undecided,
    /// A screening gives no verdict.
    Screening,
}

impl Verdict {
    /// The word for a ratio with this interval.
    pub fn of(ratio: f64, interval: Interval) -> Self {
        match ratio {
            _ if interval.contains(1.0) => Self::Undecided,
            ratio if ratio > 1.5 => Self::Excellent,
            ratio if ratio >= 1.2 => Self::Good,
            ratio if ratio >= 1.0 => Self::Measured,
            _ => Self::Investigate,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Excellent => "excellent, measured",
            Self::Good => "good, measured",
            Self::Measured => "measured",
            Self::Investigate => "investigate, measured",
            Self::Undecided => "no difference shown, measured",
            Self::Screening => "measured; a quick look, no verdict",
        })
    }
}

impl Speedup {
    /// How much faster `variant` is than `baseline`.
    ///
    /// # Errors
    /// Every reason why that cannot be said.
    pub fn between(baseline: &Record, variant: &Record) -> Result<Self, NoClaim> {
        Self::build(baseline, variant).map_err(|reasons| NoClaim {
            baseline: baseline.case.id(),
            variant: variant.case.id(),
            reasons,
        })
    }

    fn build(baseline: &Record, variant: &Record) -> Result<Self, Vec<Reason>> {
        let mut reasons = Vec::new();
        if baseline.case.workload != variant.case.workload {
            reasons.push(Reason::DifferentWorkloads {
                baseline: baseline.case.workload.to_string(),
                variant: variant.case.workload.to_string(),
            });
        }
        let old = evidence(baseline, Role::Baseline, &mut reasons);
        let new = evidence(variant, Role::Variant, &mut reasons);
        let (Some((old, old_series)), Some((new, new_series))) = (old, new) else {
            return Err(reasons);
        };
        if old_series.conditions.timer.clock != new_series.conditions.timer.clock {
            reasons.push(Reason::DifferentClocks);
        }
        let crosses_clocks = old_series.conditions.basis != new_series.conditions.basis;
        let on_the_host = || [old_series, new_series].map(Series::on_the_host);
        let alike = match (crosses_clocks, crosses_clocks.then(on_the_host)) {
            (true, Some([Some(old), Some(new)])) => [old, new],
            (true, _) => {
                reasons.push(Reason::DifferentClocks);
                return Err(reasons);
            }
            (false, _) => [old_series, new_series].map(Cow::Borrowed),
        };
        if crosses_clocks {
            // Statuses that block by the clock of the record itself are among the reasons already.
            for (series, side) in alike.iter().zip([Role::Baseline, Role::Variant]) {
                let blocks = gate(series)
                    .into_iter()
                    .filter(|status| status.kind.exclusion() == Exclusion::Ratio);
                let found = blocks.map(|status| Reason::Blocked { side, status });
                let new: Vec<Reason> = found.filter(|reason| !reasons.contains(reason)).collect();
                reasons.extend(new);
            }
        }
        if old_series.conditions.depth != new_series.conditions.depth {
            reasons.push(Reason::DifferentDepths);
        }
        let is_warm =
            |m: &Measurement| m.statuses.iter().any(|status| status.kind == StatusKind::Warm);
        // By the host's clock both were called back to back.
        if !crosses_clocks && is_warm(old) != is_warm(new) {
            let side = if is_warm(old) { Role::Baseline } else { Role::Variant };
            reasons.push(Reason::DifferentCaches { side });
        }
        let counts = [old_series.summary.count, new_series.summary.count];
        let [(old_times, old_cold), (new_times, new_cold)] =
            alike.each_ref().map(|series| settled(series));
        let ratio = ratio_of_medians(&old_times, &new_times, variant.seed);
        let Some(ratio) = ratio else {
            reasons.push(Reason::TooFewSamples { counts });
            return Err(reasons);
        };
        if ratio.interval.contains(1.0) {
            // A cold sample cannot decide what the settled samples do not.
            let cold = [(Role::Baseline, old_cold), (Role::Variant, new_cold)].into_iter();
            reasons.extend(
                cold.filter_map(|(side, cold)| Some(Reason::Blocked { side, status: cold? })),
            );
        }
        reasons.extend(unconfirmed(ratio.ratio, old, new));
        if !reasons.is_empty() {
            return Err(reasons);
        }
        let warnings = old.statuses.iter().chain(&new.statuses).cloned().collect();
        Ok(Self {
            baseline: baseline.case.id(),
            variant: variant.case.id(),
            ratio: ratio.ratio,
            low: ratio.interval.low,
            high: ratio.interval.high,
            counts,
            depth: new_series.conditions.depth,
            basis: alike[1].conditions.basis,
            host_medians_ns: crosses_clocks.then(|| [old_times.median(), new_times.median()]),
            warnings,
        })
    }

    /// Id of the baseline's case.
    pub fn baseline(&self) -> &str {
        &self.baseline
    }

    /// Median time of the baseline over median time of the variant.
    pub fn ratio(&self) -> f64 {
        self.ratio
    }

    /// The 95 % bootstrap interval of the ratio.
    pub fn interval(&self) -> Interval {
        Interval { low: self.low, high: self.high, confidence: crate::statistics::CONFIDENCE }
    }

    /// Medians of baseline and variant by the host's clock, in nanoseconds per call. `Some` if the
    /// ratio is of these, because one of the two has no device clock.
    pub fn host_medians_ns(&self) -> Option<[f64; 2]> {
        self.host_medians_ns
    }

    /// Samples of baseline and variant.
    pub fn counts(&self) -> [usize; 2] {
        self.counts
    }

    /// Statuses that warn without blocking, of both sides.
    pub fn warnings(&self) -> &[Status] {
        &self.warnings
    }

    /// The word for it. A ratio whose interval includes 1 has none.
    pub fn verdict(&self) -> Verdict {
        match self.depth {
            Depth::Screening => Verdict::Screening,
            Depth::Full => Verdict::of(self.ratio, self.interval()),
        }
    }

    /// Whether it is from a screening, which gives no verdict.
    pub fn is_screening(&self) -> bool {
        self.depth == Depth::Screening
    }

    /// The ratio and its interval alone: `1.93x [1.90, 1.96]`. If its two times are not the
    /// latencies of the records, they follow:
    /// `2.39x [2.36, 2.40] by the host's clock, 39.6 us over 16.6 us`.
    pub fn figure(&self) -> String {
        let digits = decimals(Some(self.interval().half_width()));
        let ratio =
            format!("{:.digits$}x [{:.digits$}, {:.digits$}]", self.ratio, self.low, self.high);
        match self.host_medians_ns {
            Some([old, new]) => {
                format!("{ratio} by the host's clock, {} over {}", time(old, None), time(new, None))
            }
            None => ratio,
        }
    }
}

/// The whole sentence: `1.93x [1.90, 1.96], excellent, measured`.
impl fmt::Display for Speedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.figure(), self.verdict())
    }
}

/// The evidence of one side; its shortcomings are added to `reasons`.
fn evidence<'r>(
    record: &'r Record,
    side: Role,
    reasons: &mut Vec<Reason>,
) -> Option<(&'r Measurement, &'r Series)> {
    let measurement = match record.outcome.failure() {
        Some(failure) => {
            reasons.push(Reason::DidNotRun { side, failure: failure.clone() });
            return None;
        }
        None => record.outcome.measurement()?,
    };
    reasons.extend(
        measurement.blocks().map(|status| Reason::Blocked { side, status: status.clone() }),
    );
    match (&measurement.latency, &measurement.reported) {
        (Some(_), _) => {}
        (None, Some(Reported { tool, kept, .. })) => {
            reasons.push(Reason::OnlyReported { side, tool: tool.clone(), kept: *kept });
        }
        (None, None) => reasons.push(Reason::NotTimed { side }),
    }
    if measurement.agreement.as_ref().is_none_or(|agreement| !agreement.holds()) {
        reasons.push(Reason::NotVerified { side });
    }
    Some((measurement, measurement.latency.as_ref()?))
}

/// Over 10x, the mean of long back-to-back spans must say the same within 10 %.
fn unconfirmed(ratio: f64, baseline: &Measurement, variant: &Measurement) -> Option<Reason> {
    if ratio <= SUSPECT_RATIO {
        return None;
    }
    let second =
        baseline.sustained.zip(variant.sustained).map(|(old, new)| old.mean_ns() / new.mean_ns());
    let said = match second {
        Some(second) if (second / ratio - 1.0).abs() <= CONFIRMATION => return None,
        Some(second) => format!("sustained calls give {second:.1}x"),
        None => "no second method was run".to_owned(),
    };
    Some(Reason::Suspect { ratio, second: said })
}

fn join(reasons: &[Reason]) -> String {
    reasons.iter().map(Reason::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
