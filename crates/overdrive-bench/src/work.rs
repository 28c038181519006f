//! How much one call does: the denominators of rates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The work in one call, from the graph: a model's estimate, not a count by hardware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Floating-point operations that are executed.
    pub flops: u64,
    /// Compulsory traffic: every input read once, every output written once.
    pub bytes: u64,
    /// The items that a call handles, for a throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
}

/// The items that a call handles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Items {
    /// Number in each call.
    pub per_call: u64,
    /// Their name in the plural: `samples`, `tokens`.
    pub name: String,
}
