//! What one process said of each case: its figures by name, the clock behind them, and whether
//! outputs agreed.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::{MEAN, MEDIAN, P95, P99};
use crate::failure::Failure;
use crate::measurement::Measurement;
use crate::memory::{MemoryUse, Peak};
use crate::statistics::Sorted;
use crate::status::StatusKind;

/// What one process said, by case.
pub type Observations = BTreeMap<String, Result<Observed, Failure>>;

/// What one process said of one case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    /// Every figure by its name, which ends in its unit: times per call, memory, and the case's own
    /// quantities.
    pub figures: BTreeMap<String, f64>,
    /// Median device cycles per call, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
    /// Whether outputs were compared with what they should be, and agreed.
    #[serde(default)]
    pub agrees: bool,
    /// Findings about the samples that bear on a comparison of processes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub statuses: BTreeSet<StatusKind>,
}

impl Observed {
    /// A bare median.
    pub fn of_time(median_ns: f64) -> Self {
        Self { figures: BTreeMap::from([(MEDIAN.to_owned(), median_ns)]), ..Self::default() }
    }

    /// The figure of this name.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// The device's clock during the process, in cycles per nanosecond.
    pub fn clock_ghz(&self) -> Option<f64> {
        Some(self.cycles? / self.figure(MEDIAN)?)
    }

    pub(super) fn of(measurement: &Measurement) -> Result<Self, Failure> {
        let statuses: BTreeSet<StatusKind> =
            measurement.statuses.iter().map(|status| status.kind).collect();
        // One sample out of line leaves a process's median alone; what follows says that the median
        // is wrong.
        let disbelieved = measurement
            .statuses
            .iter()
            .find(|status| matches!(status.kind, StatusKind::Invalid | StatusKind::Suspect));
        if let Some(status) = disbelieved {
            return Err(Failure::failed(status.to_string()));
        }
        let mut figures = measurement.quantities.clone();
        let series = measurement.latency.as_ref();
        if let Some(summary) = series.map(|series| &series.summary) {
            figures.extend(times(
                summary.median_ns,
                summary.mean_ns,
                [summary.p95_ns, summary.p99_ns],
            ));
        }
        figures.extend(measurement.memory.as_ref().into_iter().flat_map(memory));
        let cycles = series.and_then(|series| {
            let calls = series.conditions.calls_per_sample as f64;
            let cycles: Option<Vec<f64>> =
                series.samples.iter().map(|sample| Some(sample.cycles? as f64 / calls)).collect();
            Some(Sorted::new(&cycles?)?.median())
        });
        Ok(Self { figures, cycles, agrees: measurement.agreement.is_some(), statuses })
    }
}

/// The figures of a case's times; a tail of too few samples is none.
pub(super) fn times(
    median_ns: f64,
    mean_ns: f64,
    tails: [Option<f64>; 2],
) -> impl Iterator<Item = (String, f64)> {
    let figures =
        [(MEDIAN, Some(median_ns)), (MEAN, Some(mean_ns)), (P95, tails[0]), (P99, tails[1])];
    figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?)))
}

/// Peaks of every witness that was there.
fn memory(memory: &MemoryUse) -> impl Iterator<Item = (String, f64)> {
    let peak = |peak: &Option<Peak>| peak.map(|peak| peak.peak_bytes);
    let figures = [
        ("planned_arena_bytes", memory.planned_arena_bytes),
        ("heap_peak_bytes", peak(&memory.heap)),
        ("resident_peak_bytes", peak(&memory.resident)),
        ("device_peak_bytes", peak(&memory.device)),
    ];
    figures.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes? as f64)))
}
