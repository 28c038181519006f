//! The observation of each case by one process: its figures by name, the clock behind them, and
//! whether outputs agreed.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::status::StatusKind;

/// The headline: the median time per call.
pub const MEDIAN: &str = "median_ns";
/// The mean time per call, which a third of slow calls moves where it leaves the median alone.
pub const MEAN: &str = "mean_ns";
/// The 95th percentile, from 59 samples on.
pub const P95: &str = "p95_ns";
/// The 99th percentile, from 299 samples on.
pub const P99: &str = "p99_ns";

/// Observations of one process, by case.
pub type Observations = BTreeMap<String, Result<Observed, Failure>>;

/// The observation of one case by one process.
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
}
