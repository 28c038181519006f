//! The user's request.

use crate::gate::Gate;
use overdrive_studies::quantization::Metric;
use serde::{Deserialize, Serialize};

/// The quantity to reduce.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The time of a call, or of a token.
    Latency,
    /// The time of a call of many samples, or of a token of many sequences.
    Throughput,
    /// Bytes on the device while it runs.
    Memory,
    /// Bytes of parameters.
    Size,
}

impl Target {
    /// Whether time decides.
    pub fn is_time(self) -> bool {
        matches!(self, Self::Latency | Self::Throughput)
    }
}

/// How much is tried.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Methods without a search, on all layers alike.
    Quick,
    /// Every method that needs no training and no descent, and mixes.
    Normal,
    /// Every method; all are judged, also those that are beaten.
    High,
}

/// The request to a search.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// The quantity to reduce.
    pub target: Target,
    /// Tokens before the one that is timed, if the time of decoding counts in place of a call's.
    #[serde(default)]
    pub decode: Option<usize>,
    /// The metric that judges.
    pub metric: Metric,
    /// Largest loss allowed, in the unit of the metric.
    pub limit: f64,
    /// The probability with which a form that loses more may be taken.
    pub error: f64,
    /// How much is tried.
    pub effort: Effort,
}

/// Forms that are judged at the end, at most.
pub(crate) const FINALISTS: usize = 3;
/// The error of a look at the samples that choose, which decides nothing.
const SCREENING_ERROR: f64 = 0.025;

impl Asked {
    /// The gate that decides at the end.
    pub fn gate(&self) -> Gate {
        Gate { limit: self.limit, error: self.error, forms: FINALISTS }
    }

    /// The gate for candidates during the search.
    pub(crate) fn screen(&self) -> Gate {
        Gate { limit: self.limit, error: SCREENING_ERROR, forms: 1 }
    }
}
