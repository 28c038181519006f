//! The measurement of a case that ran. Every field is absent where nothing was measured, never 0.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::deviation::Deviation;
use crate::digits;
use crate::energy::EnergyUse;
use crate::memory::MemoryUse;
use crate::reported::Reported;
use crate::series::{Series, TimedCalls};
use crate::status::{Exclusion, Status};
use crate::work::Work;

/// The measurement of a case that ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Steady-state time per call; absent where only exact quantities were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Series>,
    /// Figures that another tool reported, if the case was not measured here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Reported>,
    /// Calls made back to back over a long span, measured if a ratio looked too good. Their mean
    /// checks the median of the samples by a second method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<TimedCalls>,
    /// Costs that are paid once, never part of the latency.
    #[serde(default, skip_serializing_if = "Overhead::is_empty")]
    pub overhead: Overhead,
    /// The work in one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Rates reached as shares of ceilings measured in the same run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceiling_shares: Vec<CeilingShare>,
    /// Peaks of memory, from a pass that was not timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// Time to copy inputs to the device and outputs back, which is no part of the latency. Absent
    /// if the device is the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
    /// Energy, where the machine can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyUse>,
    /// How well the outputs agreed with the reference; without it nothing is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// Exact quantities of the study's own, named with their unit: `file_bytes`, `top1_percent`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quantities: BTreeMap<String, f64>,
    /// Quantities that were followed over the run: a loss over its steps, memory over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// Findings of the status gate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<Status>,
}

impl Measurement {
    /// A measurement of this latency, with the statuses that follow from it.
    pub fn timed(latency: Series) -> Self {
        let statuses = crate::status::gate(&latency);
        Self { latency: Some(latency), statuses, ..Self::default() }
    }

    /// A measurement that another tool reports, judged by our gate.
    pub fn reported(reported: Reported) -> Self {
        let statuses = reported.gate();
        Self { reported: Some(reported), statuses, ..Self::default() }
    }

    /// The time per call as text: the median with its interval, or the mean that was imported from
    /// another tool.
    pub fn printed_time(&self) -> Option<String> {
        match (&self.latency, &self.reported) {
            (Some(series), _) => Some(digits::time_of(&series.summary)),
            (None, Some(reported)) => {
                Some(format!("{} (mean, imported)", digits::time(reported.mean_ns, None)))
            }
            (None, None) => None,
        }
    }

    /// Statuses that keep this measurement out of any ratio.
    pub fn blocks(&self) -> impl Iterator<Item = &Status> {
        self.statuses.iter().filter(|status| status.kind.exclusion() == Exclusion::Ratio)
    }

    /// Derives again what follows from samples by today's rules: a file of an older version may
    /// have judged by others.
    pub(crate) fn judge_again(&mut self) {
        self.statuses.retain(|status| !status.kind.is_derived());
        let timed = self.latency.as_ref().map(crate::status::gate).unwrap_or_default();
        let reported = self.reported.as_ref().map(Reported::gate).unwrap_or_default();
        for status in timed.into_iter().chain(reported) {
            if !self.statuses.iter().any(|known| known.kind == status.kind) {
                self.statuses.push(status);
            }
        }
    }

    /// Items per second over the time that all calls took together, where the work counts items.
    /// Slow calls delay those behind them, so that the mean decides it and not the median.
    pub fn throughput(&self) -> Option<Throughput> {
        let items = self.work.as_ref()?.items.as_ref()?.per_call as f64;
        let (times, _) = crate::status::settled(self.latency.as_ref()?);
        let rate = |mean_ns: f64| items / (mean_ns * 1e-9);
        // A lower end that is no time leaves the rate without an upper one.
        let interval = times.mean_interval().filter(|interval| interval.low > 0.0);
        Some(Throughput {
            per_second: rate(times.mean()),
            interval: interval.map(|interval| (rate(interval.high), rate(interval.low))),
        })
    }
}

/// How much is handled in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// Items per second.
    pub per_second: f64,
    /// Its 95 % interval; absent where too few samples, or too scattered ones, give none.
    pub interval: Option<(f64, f64)>,
}

/// A quantity that was followed over a run, in the order in which it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// The followed quantity, with its unit: `loss`, `memory_bytes`.
    pub quantity: String,
    /// Along what, with its unit: `step`, `time_ns`.
    pub over: String,
    /// Seed of the run, where a case has a curve for each of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Place along `over` and value there, ascending in the first.
    pub points: Vec<(f64, f64)>,
}

/// Costs that are paid once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// From graph to runnable, empty cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compile_ns: Option<u64>,
    /// Timing of candidates by the tuner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autotune_ns: Option<u64>,
    /// Capture of a device graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture_ns: Option<u64>,
    /// Reading the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ns: Option<u64>,
    /// The very first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_call_ns: Option<u64>,
}

impl Overhead {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The stages with their times, in the order in which they are paid.
    pub fn stages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let stages = [
            ("load", self.load_ns),
            ("compile", self.compile_ns),
            ("autotune", self.autotune_ns),
            ("capture", self.capture_ns),
            ("first call", self.first_call_ns),
        ];
        stages.into_iter().filter_map(|(name, ns)| Some((name, ns?)))
    }
}

/// Copies of one call's inputs from the host's memory to a device, and of its outputs back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Copies {
    /// Bytes of the inputs.
    pub in_bytes: u64,
    /// From the start until a word that is written last has been read back: the median of several.
    pub in_ns: u64,
    /// Bytes of the outputs.
    pub out_bytes: u64,
    /// Until all of them are on the host: likewise.
    pub out_ns: u64,
}

/// A rate as a share of a ceiling that was measured in the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CeilingShare {
    /// Name of the ceiling in [`Results::ceilings`](crate::results::Results::ceilings).
    pub ceiling: String,
    /// The rate over the ceiling. Above 1 is a label, not an error: a measured ceiling can be
    /// beaten.
    pub share: f64,
}

/// Proof that outputs agree with a reference of higher precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Agreement {
    /// Description of the reference.
    pub reference: String,
    /// On how many seeds outputs were compared.
    pub seeds: u32,
    /// The largest differences, over every value compared.
    pub worst: Deviation,
}

impl Agreement {
    /// Whether every value compared was within the tolerance.
    pub fn holds(&self) -> bool {
        self.seeds > 0 && self.worst.agrees()
    }
}
