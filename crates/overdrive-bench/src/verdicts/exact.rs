//! Figures that need no statistics: bytes and accuracies that every process of a side says alike,
//! which plain thresholds judge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome for a quantity.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ExactChange {
    /// Beyond what is allowed.
    Worse,
    /// It changed, and its name does not say which way is better.
    Unclear,
    /// Within what is allowed, or better.
    Fine,
}

/// One quantity on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exact {
    /// Its name, which ends in its unit.
    pub name: String,
    /// The baseline's.
    pub baseline: f64,
    /// The current's.
    pub current: f64,
    /// The allowed difference, in its own unit.
    pub allowed: f64,
    /// With what result.
    pub change: ExactChange,
}

impl Exact {
    /// Whether it is beyond what is allowed.
    pub fn is_worse(&self) -> bool {
        self.change == ExactChange::Worse
    }

    /// A sentence about it, if there is anything to say.
    pub fn sentence(&self) -> Option<String> {
        let Self { name, baseline, current, allowed, change } = self;
        let went = if current < baseline { "fell" } else { "grew" };
        let moved = format!(
            "`{name}` {went} from {baseline} to {current}, by more than {}",
            rounded(*allowed)
        );
        match change {
            ExactChange::Worse => Some(moved),
            ExactChange::Unclear => Some(format!("{moved}; {UNCLEAR}")),
            ExactChange::Fine => None,
        }
    }
}

/// The reason and the remedy for an unclear name.
pub const UNCLEAR: &str = "its name does not say which way is better: end it in a unit such \
                                  as `_bytes`, `_ms`, `_per_s` or `_percent` (docs/regression.md \
                                  lists them)";

/// At most four digits of a threshold, which is a share of something.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}
