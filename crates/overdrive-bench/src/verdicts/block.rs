//! Blocks of six fresh processes, which are the unit of a session.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::observation::{Observations, Observed};

/// The role of a process of a block.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The side to compare with: A.
    Baseline,
    /// The judged side: B.
    Current,
    /// The baseline once more, judged as if it were the current: whatever it shows is false.
    Control,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "baseline",
            Self::Current => "current",
            Self::Control => "control",
        })
    }
}

/// Observations of the processes of a block, in the order in which they ran. There are fewer than
/// six after an interruption.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// Side and observations of each process.
    pub runs: Vec<(Side, Observations)>,
}

impl Block {
    /// The observation of `case` by each process, in order, with its side. A process without a
    /// figure is left out.
    pub fn observed<'b>(&'b self, case: &str) -> impl Iterator<Item = (Side, &'b Observed)> {
        self.runs
            .iter()
            .filter_map(move |(side, said)| Some((*side, said.get(case)?.as_ref().ok()?)))
    }
}
