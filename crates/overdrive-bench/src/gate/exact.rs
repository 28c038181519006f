//! What needs no statistics: bytes and accuracies are the same in every process, so plain thresholds judge them.
//!
//! What a quantity means is read from its name, which ends in its unit: `file_bytes`, `top1_percent`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::Side;
use super::observation::Observed;

/// How a quantity is judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// It may grow by this share: sizes, losses, perplexities.
    MayGrow(f64),
    /// It may fall by so much in its own unit: accuracies, similarities.
    MayFall(f64),
    /// It is shown and not judged: its name says neither what it is nor which direction is better.
    Shown,
}

/// The threshold that belongs to a name.
pub fn threshold(name: &str) -> Threshold {
    let word = |words: &[&str]| name.split('_').any(|part| words.contains(&part));
    if word(&["bytes", "loss", "perplexity"]) {
        Threshold::MayGrow(0.01)
    } else if word(&["top1", "top5", "accuracy", "cosine"]) {
        Threshold::MayFall(if name.ends_with("_percent") { 0.5 } else { 0.005 })
    } else {
        Threshold::Shown
    }
}

/// What became of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Beyond its threshold.
    Worse,
    /// It differs between processes of one side, so it is not exact and no threshold applies.
    Varies,
    /// Within its threshold, or better.
    Fine,
    /// Not judged.
    Shown,
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
    /// How it was judged.
    pub threshold: Threshold,
    /// With what result.
    pub change: Change,
}

impl Exact {
    /// Whether it is beyond its threshold.
    pub fn is_worse(&self) -> bool {
        self.change == Change::Worse
    }

    /// What to say of it, if anything.
    pub fn sentence(&self) -> Option<String> {
        let Self { name, baseline, current, threshold, change } = self;
        match (change, threshold) {
            (Change::Worse, Threshold::MayGrow(share)) => Some(format!(
                "`{name}` grew from {baseline} to {current}, by more than {:.0} %",
                100.0 * share
            )),
            (Change::Worse, Threshold::MayFall(amount)) => {
                Some(format!("`{name}` fell from {baseline} to {current}, by more than {amount}"))
            }
            (Change::Varies, _) => {
                Some(format!("`{name}` differs between processes of one side, so it is not judged"))
            }
            _ => None,
        }
    }
}

/// Judges every quantity that both sides have.
pub fn exact<'o>(observed: impl Iterator<Item = (Side, &'o Observed)>) -> Vec<Exact> {
    let mut names: Vec<(&str, [Vec<f64>; 2])> = Vec::new();
    for (side, observed) in observed {
        for (name, &value) in &observed.exact {
            let at = names.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                names.push((name, [Vec::new(), Vec::new()]));
                names.len() - 1
            });
            names[at].1[side as usize].push(value);
        }
    }
    names.sort_by_key(|(name, _)| *name);
    let judged = |(name, [baseline, current]): (&str, [Vec<f64>; 2])| {
        let (&old, &new) = (baseline.first()?, current.first()?);
        let steady = |values: &[f64]| values.iter().all(|value| *value == values[0]);
        let threshold = threshold(name);
        let worse = match threshold {
            Threshold::MayGrow(share) => new > old + share * old.abs(),
            Threshold::MayFall(amount) => new < old - amount,
            Threshold::Shown => false,
        };
        let change = match threshold {
            Threshold::Shown => Change::Shown,
            _ if !steady(&baseline) || !steady(&current) => Change::Varies,
            _ if worse => Change::Worse,
            _ => Change::Fine,
        };
        Some(Exact { name: name.to_owned(), baseline: old, current: new, threshold, change })
    };
    names.into_iter().filter_map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, baseline: &[f64], current: &[f64]) -> Change {
        let of = |value: &f64| {
            let mut observed = Observed::of_time(1.0);
            observed.exact.insert(name.to_owned(), *value);
            observed
        };
        let sides: Vec<(Side, Observed)> = baseline
            .iter()
            .map(|value| (Side::Baseline, of(value)))
            .chain(current.iter().map(|value| (Side::Current, of(value))))
            .collect();
        exact(sides.iter().map(|(side, observed)| (*side, observed)))[0].change
    }

    #[test]
    fn each_unit_has_its_direction() {
        assert_eq!(change("file_bytes", &[1000.0, 1000.0], &[1010.0]), Change::Fine);
        assert_eq!(change("file_bytes", &[1000.0], &[1011.0]), Change::Worse);
        assert_eq!(change("file_bytes", &[1000.0], &[500.0]), Change::Fine);
        assert_eq!(change("top1_percent", &[92.0], &[91.5]), Change::Fine);
        assert_eq!(change("top1_percent", &[92.0], &[91.4]), Change::Worse);
        assert_eq!(change("mean_cosine", &[0.999], &[0.993]), Change::Worse);
        assert_eq!(change("validation_loss", &[2.0], &[2.1]), Change::Worse);
        assert_eq!(change("validation_perplexity", &[20.0], &[20.1]), Change::Fine);
        assert_eq!(change("tokens", &[1.0], &[9.0]), Change::Shown);
    }

    #[test]
    fn what_varies_is_not_exact() {
        assert_eq!(change("file_bytes", &[1000.0, 1001.0], &[2000.0]), Change::Varies);
        assert_eq!(exact(std::iter::empty()), []);
    }
}
