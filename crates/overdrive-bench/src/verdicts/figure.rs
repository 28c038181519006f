//! One figure of a case and its verdict.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digits::decimals;

/// The verdict that the blocks of a case support.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Worse by more than 5 %, beyond what chance explains.
    Regressed,
    /// Neither a change nor its absence is shown.
    Undecided,
    /// Better by more than 5 %, beyond what chance explains.
    Improved,
    /// The interval lies within 5 % either way.
    Same,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regressed => "REGRESSED",
            Self::Undecided => "UNDECIDED",
            Self::Improved => "IMPROVED",
            Self::Same => "SAME",
        })
    }
}

/// A change with the interval that is valid at every look of its session, at 99 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// Worse over better: over 1, the current is worse. For times it is current over baseline.
    Ratio {
        /// The estimate.
        value: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// By how much the current is worse, in the figure's own unit.
    Difference {
        /// The estimate.
        value: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end.
        high: f64,
    },
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |low: f64, high: f64| decimals(Some((high - low) / 2.0)).clamp(2, 4);
        match *self {
            Self::Ratio { value, low, high } => {
                let digits = digits(low, high);
                write!(f, "{value:.digits$}x [{low:.digits$}, {high:.digits$}]")
            }
            Self::Difference { value, low, high } => {
                let digits = digits(low, high);
                write!(f, "worse by {value:.digits$} [{low:.digits$}, {high:.digits$}]")
            }
        }
    }
}

/// One figure of a case, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Its name, which ends in its unit: `median_ns`, `tokens_per_s`.
    pub name: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Change of the current side against the baseline.
    pub change: Estimate,
    /// p of the sequential signed-rank test after Holm's correction over all figures of the
    /// session.
    pub p: f64,
    /// The smallest true change for the worse that this session would have called a regression four
    /// times in five, in the unit of `change`.
    pub minimum_detectable: f64,
    /// Blocks behind it.
    pub blocks: usize,
    /// Number of blocks that would decide. Absent if it is decided, or if no reasonable number
    /// would decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_to_decide: Option<usize>,
    /// Median over the baseline's processes.
    pub baseline: f64,
    /// Median over the current's processes.
    pub current: f64,
}
