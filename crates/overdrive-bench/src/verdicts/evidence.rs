//! The evidence of a session, as data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::{Block, Side};
use crate::failure::Failure;

/// Everything that a session saw: what its verdicts are computed from, and all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Every block, in the order in which they ran.
    pub blocks: Vec<Block>,
    /// Whether the session ended since all was decided; else time was up, or it was ended early.
    pub settled: bool,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// Processes that ended without results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(Side, Failure)>,
    /// Why it ended before its plan, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<Failure>,
}
