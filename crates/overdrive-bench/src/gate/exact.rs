//! What needs no statistics: bytes and accuracies that every process of a side says alike, which
//! plain thresholds judge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::{Better, Metric, Scale};

/// What became of a quantity.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Change {
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
    /// What it may differ by, in its own unit.
    pub allowed: f64,
    /// With what result.
    pub change: Change,
}

impl Exact {
    /// Judges `current` beside `baseline`.
    pub fn of(name: &str, metric: &Metric, [baseline, current]: [f64; 2]) -> Self {
        let allowed = match metric.scale {
            Scale::Ratio => metric.exact_share * baseline.abs(),
            Scale::Difference(allowed) => allowed,
        };
        // What is not a number is within nothing.
        let is_number = current.is_finite() && baseline.is_finite();
        let grew = !is_number || current > baseline + allowed;
        let fell = !is_number || current < baseline - allowed;
        let change = match metric.better {
            Better::Lower if grew => Change::Worse,
            Better::Higher if fell => Change::Worse,
            Better::Unknown if grew || fell => Change::Unclear,
            _ => Change::Fine,
        };
        Self { name: name.to_owned(), baseline, current, allowed, change }
    }

    /// Whether it is beyond what is allowed.
    pub fn is_worse(&self) -> bool {
        self.change == Change::Worse
    }

    /// What to say of it, if anything.
    pub fn sentence(&self) -> Option<String> {
        let Self { name, baseline, current, allowed, change } = self;
        let went = if current < baseline { "fell" } else { "grew" };
        let moved = format!(
            "`{name}` {went} from {baseline} to {current}, by more than {}",
            rounded(*allowed)
        );
        match change {
            Change::Worse => Some(moved),
            Change::Unclear => Some(format!("{moved}; {UNCLEAR}")),
            Change::Fine => None,
        }
    }
}

/// What makes a name clear.
pub(super) const UNCLEAR: &str = "its name does not say which way is better: end it in a unit such \
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::metric::metric;

    fn change(name: &str, baseline: f64, current: f64) -> Change {
        Exact::of(name, &metric(name).unwrap(), [baseline, current]).change
    }

    #[test]
    fn each_unit_has_its_threshold() {
        assert_eq!(change("file_bytes", 1000.0, 1010.0), Change::Fine);
        assert_eq!(change("file_bytes", 1000.0, 1011.0), Change::Worse);
        assert_eq!(change("file_bytes", 1000.0, 500.0), Change::Fine);
        assert_eq!(change("top1_percent", 92.0, 91.5), Change::Fine);
        assert_eq!(change("top1_percent", 92.0, 91.4), Change::Worse);
        assert_eq!(change("mean_cosine", 0.999, 0.993), Change::Worse);
        assert_eq!(change("validation_loss", 2.0, 2.1), Change::Worse);
        assert_eq!(change("validation_perplexity", 20.0, 20.1), Change::Fine);
        assert_eq!(change("tokens_per_s", 100.0, 10.0), Change::Worse);
        assert_eq!(change("rate", 100.0, 10.0), Change::Worse);
        assert_eq!(change("tokens_per_s", 10.0, 100.0), Change::Fine);
        assert_eq!(change("tokens", 1.0, 1.0), Change::Fine);
        assert_eq!(change("tokens", 100.0, 10.0), Change::Unclear);
        assert_eq!(change("mean_cosine", 0.999, f64::NAN), Change::Worse);
    }

    #[test]
    fn what_changed_is_told() {
        let said =
            |name: &str, from, to| Exact::of(name, &metric(name).unwrap(), [from, to]).sentence();
        assert_eq!(
            said("file_bytes", 1000.0, 1100.0).unwrap(),
            "`file_bytes` grew from 1000 to 1100, by more than 10"
        );
        assert!(said("widgets", 3.0, 9.0).unwrap().contains("which way is better"));
        assert_eq!(said("file_bytes", 1000.0, 1000.0), None);
    }
}
