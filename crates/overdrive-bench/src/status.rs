//! The status gate: reasons in the samples themselves not to believe a figure.
//!
//! A blocking status keeps the record out of every ratio; a warning is printed beside the figure.
//! One slow sample extends the series, and blocks only where the other samples do not decide. The
//! limits are constants with names, so that a report can print the one that was passed. Wrong
//! outputs need no status: they have no measurement at all
//! ([`FailureKind::Incorrect`](crate::failure::FailureKind::Incorrect)).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digits;
use crate::series::{Basis, Flag, Series, Settling, Stopped};
use crate::statistics::{MAD_TO_SIGMA, Sorted};
use crate::work::Work;

/// Share of the sum that a single sample may hold.
pub const DOMINANT_SHARE: f64 = 0.5;
/// Share of the ceiling sqrt(n - 1) that the coefficient of variation may reach.
pub const DOMINANT_VARIATION: f64 = 0.85;
/// Robust standard deviations by which a sample may exceed the median.
pub const COLD_SIGMAS: f64 = 10.0;
/// Share of the median by which it may exceed it however small the deviations are: the same 5 %
/// within which warm-up calls count as agreeing. On a quiet core ten sigmas can be 0.1 %, which no
/// cold cache explains.
pub const COLD_EXCESS: f64 = 0.05;
/// Interquartile range over median beyond which a series is `noisy`.
pub const NOISY: f64 = 0.10;
/// A series is `noisy` too where its standard deviation over its mean exceeds this. Its middle half
/// is quiet, but a few slow samples take very long. The median then says little of the time that
/// many calls take together.
pub const VARIATION: f64 = 0.50;
/// Interquartile range over median beyond which a series is `scattered`.
pub const SCATTERED: f64 = 0.25;
/// Share of samples under a throttled clock beyond which a series is `throttled`.
pub const THROTTLED_SHARE: f64 = 0.20;
/// Generous cost of a launch on the host; it is some 5 us on a quiet machine.
pub const LAUNCH_NS: f64 = 20_000.0;
/// Cost of waiting for the device on the host, beyond the launches.
pub const SYNCHRONISATION_NS: f64 = 50_000.0;

/// One finding about a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Which.
    pub kind: StatusKind,
    /// With which figures, for the reader.
    pub detail: String,
}

/// The findings that there are.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum StatusKind {
    /// One sample outweighs the others.
    OneSampleDominates,
    /// The first sample was not like the rest, so the warm-up missed something.
    ColdFirstSample,
    /// The middle half of the samples spreads over more than a quarter of the median.
    Scattered,
    /// Faster than physics allows.
    Invalid,
    /// Too good, or two clocks disagree, and no second method has confirmed it.
    Suspect,
    /// The middle half of the samples spreads over more than a tenth of the median.
    Noisy,
    /// Sampling ended at its limit before the interval was narrow.
    Imprecise,
    /// Warm-up ended at its limit before the calls agreed.
    Unsettled,
    /// The device's clock was low in many samples.
    Throttled,
    /// The device waited for launches longer than it worked.
    LaunchBound,
    /// Caches were to be emptied before each sample, and in some were not: this is no cold time.
    Warm,
    /// A compressed model that takes as many bytes as the one it was made from, or more.
    NotCompressed,
}

/// The effect of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// It keeps the record out of every ratio.
    Ratio,
    /// It extends the series, and keeps the record out of a ratio that the other samples do not
    /// decide.
    Undecided,
    /// It is printed next to the figure.
    Nothing,
}

impl StatusKind {
    /// Whether it follows from samples alone, and can be derived again.
    pub(crate) fn is_derived(self) -> bool {
        match self {
            Self::OneSampleDominates
            | Self::ColdFirstSample
            | Self::Scattered
            | Self::Noisy
            | Self::Imprecise
            | Self::Unsettled
            | Self::Throttled
            | Self::LaunchBound
            | Self::Warm => true,
            // A second method may clear or raise a suspicion; the others need the device or another
            // record.
            Self::Invalid | Self::Suspect | Self::NotCompressed => false,
        }
    }

    /// Whether it blocks or warns.
    pub fn exclusion(self) -> Exclusion {
        match self {
            Self::OneSampleDominates | Self::Scattered | Self::Invalid | Self::Suspect => {
                Exclusion::Ratio
            }
            Self::ColdFirstSample => Exclusion::Undecided,
            Self::Noisy
            | Self::Imprecise
            | Self::Unsettled
            | Self::Throttled
            | Self::LaunchBound
            | Self::Warm
            | Self::NotCompressed => Exclusion::Nothing,
        }
    }
}

impl fmt::Display for StatusKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneSampleDominates => "one-sample-dominates",
            Self::ColdFirstSample => "cold-first-sample",
            Self::Scattered => "scattered",
            Self::Invalid => "invalid",
            Self::Suspect => "suspect",
            Self::Noisy => "noisy",
            Self::Imprecise => "imprecise",
            Self::Unsettled => "unsettled",
            Self::Throttled => "throttled",
            Self::LaunchBound => "launch-bound",
            Self::Warm => "warm",
            Self::NotCompressed => "not-compressed",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.detail)
    }
}

impl Status {
    /// A status with its figures.
    pub fn new(kind: StatusKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Every status that follows from the samples and from how they were taken.
pub fn gate(series: &Series) -> Vec<Status> {
    let mut found = of_times(&series.times_ns(), grain(series));
    if series.conditions.stopped == Stopped::Limit {
        let reached = match series.summary.relative_half_width() {
            Some(width) => format!("the median's interval is ±{:.1} % at the limit", 100.0 * width),
            None => format!("{} samples have no interval", series.summary.count),
        };
        found.push(Status::new(StatusKind::Imprecise, reached));
    }
    if series.conditions.settling == Settling::Unsettled {
        let spans = series.conditions.warmup.len();
        found.push(Status::new(
            StatusKind::Unsettled,
            format!("{spans} warm-up spans did not come to agree"),
        ));
    }
    found.extend(throttled(series));
    found.extend(clocks_disagree(series));
    found.extend(warm(series));
    found
}

/// The smallest step of a series' clock, for each call of a sample.
fn grain(series: &Series) -> f64 {
    series.conditions.timer.tick_ns as f64 / series.conditions.calls_per_sample as f64
}

/// Statuses of times in the order taken, whoever took them. Those behind a cold first sample are
/// judged without it.
pub(crate) fn of_times(times: &[f64], grain: f64) -> Vec<Status> {
    let cold = cold_first_sample(times, grain);
    let settled = if cold.is_some() { &times[1..] } else { times };
    let Some(sorted) = Sorted::new(settled) else { return Vec::new() };
    let (share, variation) =
        (sorted.max() / settled.iter().sum::<f64>(), sorted.coefficient_of_variation());
    let dominated = dominated(settled.len(), share, variation);
    let spread = match &dominated {
        // Its variation is that of the one sample, which is reported already.
        Some(_) => middle_half(sorted.relative_interquartile_range()),
        None => middle_half(sorted.relative_interquartile_range()).or_else(|| variable(&sorted)),
    };
    cold.into_iter().chain(dominated).chain(spread).collect()
}

/// The times of a series without a cold first sample, and the status that says that there was one.
pub(crate) fn settled(series: &Series) -> (Sorted, Option<Status>) {
    let times = series.times_ns();
    let cold = cold_first_sample(&times, grain(series));
    let settled = if cold.is_some() { &times[1..] } else { &times[..] };
    (Sorted::new(settled).expect("a series has times, and one that is alone is not cold"), cold)
}

/// Whether one sample is so slow, and so alone in it, that more samples must say what it was.
pub(crate) fn has_lone_slow_sample(times: &[f64]) -> bool {
    let Some(sorted) = Sorted::new(times).filter(|sorted| sorted.count() > 2) else { return false };
    let median = sorted.median();
    let excess = |from_last: usize| sorted.values()[sorted.count() - from_last] - median;
    let sigma = MAD_TO_SIGMA * sorted.median_absolute_deviation();
    is_far(excess(1), sigma, median) && excess(1) > 2.0 * excess(2)
}

/// Far above the median by both measures.
fn is_far(excess: f64, sigma: f64, median: f64) -> bool {
    excess > COLD_SIGMAS * sigma && excess > COLD_EXCESS * median
}

/// One sample of `n` that holds `share` of their sum, or brings their coefficient of `variation`
/// near its ceiling.
pub(crate) fn dominated(n: usize, share: f64, variation: f64) -> Option<Status> {
    // With one or two samples, one always holds half of the time.
    if n < 3 {
        return None;
    }
    let ceiling = ((n - 1) as f64).sqrt();
    (share > DOMINANT_SHARE || variation >= DOMINANT_VARIATION * ceiling).then(|| {
        let detail = format!(
            "one of {n} samples holds {:.0} % of their sum, variation {:.0} % of at most {:.0} %",
            100.0 * share,
            100.0 * variation,
            100.0 * ceiling
        );
        Status::new(StatusKind::OneSampleDominates, detail)
    })
}

/// A first sample that is far off, by an amount that does not come back. An amount that recurs in
/// the later half of the samples is the machine's noise and not the warm-up's fault. `times` are in
/// the order taken. If most of them are equal to the clock's grain, the deviation is zero, and the
/// `grain` is then the scale.
fn cold_first_sample(times: &[f64], grain: f64) -> Option<Status> {
    let sorted = Sorted::new(times).filter(|sorted| sorted.count() > 2)?;
    let median = sorted.median();
    let excess = times[0] - median;
    let later = times[times.len() / 2..].iter().copied().fold(0.0, f64::max) - median;
    let sigma = (MAD_TO_SIGMA * sorted.median_absolute_deviation()).max(grain);
    (is_far(excess, sigma, median) && excess > 2.0 * later).then(|| {
        let detail = format!(
            "the first sample took {:.2} times the median, {:.0} robust sigmas, and no later one \
             came near",
            times[0] / median,
            excess / sigma
        );
        Status::new(StatusKind::ColdFirstSample, detail)
    })
}

/// The bulk of the samples, judged by its interquartile range over the median.
fn middle_half(relative_interquartile_range: f64) -> Option<Status> {
    let kind = match relative_interquartile_range {
        s if s > SCATTERED => StatusKind::Scattered,
        s if s > NOISY => StatusKind::Noisy,
        _ => return None,
    };
    let percent = 100.0 * relative_interquartile_range;
    Some(Status::new(kind, format!("interquartile range {percent:.0} % of the median")))
}

/// A few slow samples among many quiet ones.
fn variable(sorted: &Sorted) -> Option<Status> {
    let variation = sorted.coefficient_of_variation();
    (variation > VARIATION).then(|| {
        let above = 100.0 * (sorted.mean() / sorted.median() - 1.0);
        let variation = 100.0 * variation;
        let detail =
            format!("variation {variation:.0} %: the mean lies {above:.0} % above the median");
        Status::new(StatusKind::Noisy, detail)
    })
}

fn throttled(series: &Series) -> Option<Status> {
    let low = series
        .samples
        .iter()
        .filter(|sample| sample.flags.iter().any(|flag| flag.is_throttling()))
        .count();
    let share = low as f64 / series.samples.len() as f64;
    (share > THROTTLED_SHARE).then(|| {
        Status::new(
            StatusKind::Throttled,
            format!("{low} of {} samples under a low clock", series.samples.len()),
        )
    })
}

/// One warm sample is enough: a graph with too few copies of its data warms all samples but the
/// first.
fn warm(series: &Series) -> Option<Status> {
    let count = series.samples.iter().filter(|sample| sample.flags.contains(&Flag::Warm)).count();
    (count > 0).then(|| {
        let all = series.samples.len();
        Status::new(
            StatusKind::Warm,
            format!("{count} of {all} samples found their data in the cache"),
        )
    })
}

/// The two clocks disagree: the device was done in less than half of the time that the host waited.
/// Launches explain a gap of some microseconds each. A larger gap means that work ran on another
/// stream, where the device's events did not see it.
fn clocks_disagree(series: &Series) -> Option<Status> {
    if series.conditions.basis != Basis::Device {
        return None;
    }
    let calls = series.conditions.calls_per_sample as f64;
    let per_call: Vec<f64> =
        series.samples.iter().map(|sample| sample.host_ns as f64 / calls).collect();
    let (host, device) = (Sorted::new(&per_call)?.median(), series.summary.median_ns);
    if device >= 0.5 * host {
        return None;
    }
    let launches = series.conditions.launches_per_call.unwrap_or(1);
    let explained = LAUNCH_NS * launches as f64 + SYNCHRONISATION_NS;
    let kind =
        if host - device <= explained { StatusKind::LaunchBound } else { StatusKind::Suspect };
    let detail = format!(
        "{} on the device's clock, {} on the host's; {launches} launches explain at most {}",
        digits::time(device, None),
        digits::time(host, None),
        digits::time(explained, None)
    );
    Some(Status::new(kind, detail))
}

/// The figure that no implementation on this machine can exceed, from its data sheet: theoretical
/// peaks, not measured ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Physics {
    /// Peak arithmetic at the highest clock, all threads of the case, FLOP/s.
    pub flops_per_second: f64,
    /// Bandwidth of the memory level that the compulsory bytes fit in, B/s.
    pub bytes_per_second: f64,
}

impl Physics {
    /// `invalid`, when a time per call is shorter than the work allows.
    pub fn check(&self, time_ns: f64, work: &Work) -> Option<Status> {
        let floor = |amount: u64, rate: f64| amount as f64 / rate * 1e9;
        let (arithmetic, traffic) =
            (floor(work.flops, self.flops_per_second), floor(work.bytes, self.bytes_per_second));
        (time_ns < arithmetic.max(traffic)).then(|| {
            let detail = format!(
                "{time_ns:.0} ns is less than the {arithmetic:.0} ns of its arithmetic or the \
                 {traffic:.0} ns of its traffic"
            );
            Status::new(StatusKind::Invalid, detail)
        })
    }
}

#[cfg(test)]
mod tests;
