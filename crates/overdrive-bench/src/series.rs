//! The raw samples of one timed case, in order, none ever deleted.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Timer;
use crate::failure::Failure;
use crate::nearly_equal::nearly_equal;
use crate::statistics::{Fence, Sorted, Summary};

/// One timed span: a batch of [`Conditions::calls_per_sample`] calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Ordinal of the process that took it, within the session.
    pub process: u32,
    /// Position in time among all samples of the session, so that the order in which variants
    /// alternated can be told.
    pub index: u32,
    /// The span on the host, from the first call to the completion of the last.
    pub host_ns: u64,
    /// The span on the device's own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<u64>,
    /// Device cycles during the span, so that a change of clock frequency can be told from a change
    /// of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// When the sample began, since its [`Session`] began. A clock read outside of the span itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// When it ended, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// Labels. They never remove the sample.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
}

/// A label of one sample.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Beyond one of Tukey's fences.
    Outlier(Fence),
    /// The device's clock was over 5 % below the median of the case.
    LowClock,
    /// The device reported a thermal slowdown during the sample.
    Thermal,
    /// The device reported a power cap during the sample.
    PowerCap,
    /// Caches were to be cold and could not be made so.
    Warm,
    /// The device timed its span after emptying its caches. The host timed calls back to back, as
    /// for subjects that have no other clock.
    HostBackToBack,
}

impl Flag {
    /// The flag that a device means by a word; one that is not known labels nothing.
    pub(crate) fn named(word: &str) -> Option<Self> {
        match word {
            "warm" => Some(Self::Warm),
            "thermal" => Some(Self::Thermal),
            "power-cap" => Some(Self::PowerCap),
            _ => None,
        }
    }

    /// Whether the flag says that the device ran slower than it could.
    pub fn is_throttling(self) -> bool {
        matches!(self, Self::LowClock | Self::Thermal | Self::PowerCap)
    }
}

/// How much was measured, and so which claims are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// The whole protocol.
    Full,
    /// Five warm-up calls and twenty samples in one process: screening, no verdict.
    Screening,
}

/// The clock that the latency of a series is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// End-to-end time on the host.
    Host,
    /// Time on the device without launch cost; the host's time is recorded too.
    Device,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// How the samples were taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conditions {
    /// How much was measured.
    pub depth: Depth,
    /// The host clock and what reading it costs.
    pub timer: Timer,
    /// The clock that the latency is read from.
    pub basis: Basis,
    /// Steps that a call enqueues on a device with its own clock. They bound the cost of launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launches_per_call: Option<u64>,
    /// Calls in each sample, chosen so that the clock's own cost and grain vanish.
    pub calls_per_sample: u64,
    /// Every warm-up span after the first call, in order.
    pub warmup: Vec<TimedCalls>,
    /// Whether the warm-up had settled when sampling began.
    pub settling: Settling,
    /// Why sampling ended.
    pub stopped: Stopped,
    /// Involuntary context switches of this process while the session sampled, rivals included.
    /// Absent if the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub involuntary_switches: Option<u64>,
    /// The session as a whole; absent in files of schema version 1, whose samples cannot be held
    /// against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

/// The session that a series was taken in. It repeats information of the samples, so that an edit
/// of either is detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Reading of the host's clock when sampling began: the same in every series of a session.
    pub began_ns: u64,
    /// From then to the end of its last sample.
    pub span_ns: u64,
    /// Subjects that alternated, those that failed on the way included.
    pub subjects: u32,
    /// Rounds in which each of them was sampled once.
    pub rounds: u32,
    /// Calls that this subject had made by then: the first one, the warm-up, the samples. If a
    /// rival ran in between, one more before each sample.
    pub calls: u64,
}

/// Calls made back to back, and how long they took together on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TimedCalls {
    /// Calls made.
    pub calls: u64,
    /// From the first to the completion of the last.
    pub host_ns: u64,
}

impl TimedCalls {
    /// Mean time per call.
    pub fn mean_ns(&self) -> f64 {
        self.host_ns as f64 / self.calls as f64
    }
}

/// How the warm-up ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Settling {
    /// The last five calls had no trend and agreed with the five before.
    Settled,
    /// The limit of calls or of time came first.
    Unsettled,
    /// A screening makes a fixed number of calls and does not ask.
    Fixed,
}

/// Why sampling ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// The median's interval was narrow enough at one of the planned looks.
    Precise,
    /// The last look or the limit of time came first.
    Limit,
}

/// Samples, how they were taken, and their summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// How the samples were taken.
    pub conditions: Conditions,
    /// Every sample, in the order in which it was taken.
    pub samples: Vec<Sample>,
    /// Summary of the time per call, on the clock of [`Conditions::basis`].
    pub summary: Summary,
}

impl Series {
    /// Labels and summarises `samples`.
    ///
    /// # Errors
    /// When there are no samples, or one has no time or a time of 0 on the chosen clock. Such a
    /// series has no latency, and 0 would be a false claim.
    pub fn new(conditions: Conditions, mut samples: Vec<Sample>) -> Result<Self, Failure> {
        let times = times_per_call(&conditions, &samples)?;
        let sorted = Sorted::new(&times).ok_or_else(|| Failure::failed("no sample was taken"))?;
        for (sample, &time) in samples.iter_mut().zip(&times) {
            sample.flags.retain(|flag| !matches!(flag, Flag::Outlier(_) | Flag::LowClock));
            sample.flags.extend(sorted.fence(time).map(Flag::Outlier));
        }
        label_low_clocks(&mut samples);
        Ok(Self { conditions, samples, summary: Summary::of(&sorted) })
    }

    /// Time per call of each sample in nanoseconds, in the order taken, on the clock of the basis.
    pub fn times_ns(&self) -> Vec<f64> {
        times_per_call(&self.conditions, &self.samples)
            .expect("a series is only built from timed samples")
    }

    /// The same, ascending.
    pub fn sorted_ns(&self) -> Sorted {
        Sorted::new(&self.times_ns()).expect("a series is only built from at least one sample")
    }

    /// The same samples by the host's clock, for a comparison with a subject that has no other
    /// clock. `None` if the host's spans were not taken in the same way as the rival's.
    pub(crate) fn on_the_host(&self) -> Option<Cow<'_, Self>> {
        if self.conditions.basis == Basis::Host {
            return Some(Cow::Borrowed(self));
        }
        let is_alike = |sample: &Sample| sample.flags.contains(&Flag::HostBackToBack);
        let conditions =
            Conditions { basis: Basis::Host, launches_per_call: None, ..self.conditions.clone() };
        let alike =
            self.samples.iter().all(is_alike).then(|| Self::new(conditions, self.samples.clone()));
        alike?.ok().map(Cow::Owned)
    }

    /// Whether labels and summary follow from the samples; false of a file that was edited. Numbers
    /// may differ in their last bits, as mathematical libraries do.
    pub fn is_consistent(&self) -> bool {
        Self::new(self.conditions.clone(), self.samples.clone()).is_ok_and(|rebuilt| {
            rebuilt.samples == self.samples && nearly_equal(&rebuilt.summary, &self.summary, 0.0)
        })
    }
}

/// Labels samples whose clock was over 5 % below the case's median clock, where cycles were
/// counted.
fn label_low_clocks(samples: &mut [Sample]) {
    let frequency = |sample: &Sample| {
        let span = sample.device_ns.unwrap_or(sample.host_ns);
        sample.cycles.map(|cycles| cycles as f64 / span as f64)
    };
    let known: Vec<f64> = samples.iter().filter_map(frequency).collect();
    let Some(median) = Sorted::new(&known).map(|sorted| sorted.median()) else { return };
    for sample in samples {
        if frequency(sample).is_some_and(|frequency| frequency < 0.95 * median) {
            sample.flags.push(Flag::LowClock);
        }
    }
}

fn times_per_call(conditions: &Conditions, samples: &[Sample]) -> Result<Vec<f64>, Failure> {
    let time = |sample: &Sample| {
        let span = match conditions.basis {
            Basis::Host => Some(sample.host_ns),
            Basis::Device => sample.device_ns,
        };
        match span {
            Some(span) if span > 0 && conditions.calls_per_sample > 0 => {
                Ok(span as f64 / conditions.calls_per_sample as f64)
            }
            Some(_) => Err(Failure::failed(format!(
                "sample {} took no time on the {} clock, which measures nothing",
                sample.index, conditions.basis
            ))),
            None => Err(Failure::failed(format!("sample {} has no device time", sample.index))),
        }
    };
    samples.iter().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conditions, samples};

    #[test]
    fn outliers_are_labelled_and_kept() {
        let mut spans = [1000; 20];
        spans[3] = 1003;
        spans[7] = 9000;
        let series = Series::new(conditions(), samples(&spans)).unwrap();
        assert_eq!(series.samples.len(), 20);
        assert_eq!(series.samples[7].flags, [Flag::Outlier(Fence::SevereHigh)]);
        assert_eq!(series.samples[0].flags, []);
        assert_eq!(series.summary.median_ns, 1000.0);
        assert_eq!(series.summary.max_ns, 9000.0);
    }

    #[test]
    fn a_slow_clock_is_labelled_from_cycles() {
        let mut taken = samples(&[1000; 10]);
        for sample in &mut taken {
            sample.cycles = Some(2000);
        }
        taken[4].host_ns = 1250; // the same cycles took longer: 1.6 instead of 2 GHz
        let series = Series::new(conditions(), taken).unwrap();
        let labelled: Vec<u32> = series
            .samples
            .iter()
            .filter(|s| s.flags.contains(&Flag::LowClock))
            .map(|s| s.index)
            .collect();
        assert_eq!(labelled, [4]);
        // It is an outlier too: labels made again from labelled samples are the same, in the same
        // order.
        assert_eq!(series.samples[4].flags, [Flag::Outlier(Fence::SevereHigh), Flag::LowClock]);
        assert!(series.is_consistent());
    }

    #[test]
    fn no_time_is_a_failure_and_never_zero() {
        assert!(Series::new(conditions(), Vec::new()).is_err());
        assert!(
            Series::new(conditions(), samples(&[5, 0, 5]))
                .unwrap_err()
                .reason
                .contains("took no time")
        );
        let device = Conditions { basis: Basis::Device, ..conditions() };
        assert!(Series::new(device, samples(&[5])).unwrap_err().reason.contains("no device time"));
    }

    #[test]
    fn an_edited_summary_is_noticed() {
        let mut series =
            Series::new(conditions(), samples(&[1000, 1010, 990, 1005, 995, 1000])).unwrap();
        assert!(series.is_consistent());
        series.summary.median_ns = 500.0;
        assert!(!series.is_consistent());
    }
}
