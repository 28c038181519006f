//! One case's result, complete: everything a report may say follows from records and nothing else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::outcome::Outcome;

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The case.
    pub case: Case,
    /// The [`Case::id`] of the record to compare this one with. `None` for a baseline, and for a
    /// record without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Seed of inputs, parameters and resampling.
    pub seed: u64,
    /// The command that reruns this case.
    pub command: String,
    /// How it ended; the only place that holds numbers.
    pub outcome: Outcome,
}
