//! Measures of quality that a study may record among its exact quantities, and how they are read: `top1_percent` with
//! `top1_percent.low`, `.high` (its interval) and `.n` (over how many items or seeds); `.change`, `.change.low` and
//! `.change.high` where it was compared with the baseline sample by sample, which says more than two intervals.

use crate::record::Measurement;

/// A measure of quality.
pub(super) struct Metric {
    /// Its quantity, with unit.
    pub(super) quantity: &'static str,
    pub(super) title: &'static str,
    pub(super) better: Better,
    /// How `charts.js` writes it.
    pub(super) format: &'static str,
    unit: &'static str,
    decimals: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// Agreement with the truth or the original: higher is better.
pub(super) const ACCURACIES: [Metric; 2] = [
    Metric {
        quantity: "top1_percent",
        title: "top-1 accuracy",
        better: Better::Higher,
        format: "percent",
        unit: " %",
        decimals: 2,
    },
    Metric {
        quantity: "cosine",
        title: "cosine similarity to the original",
        better: Better::Higher,
        format: "plain",
        unit: "",
        decimals: 4,
    },
];

/// Error: lower is better.
pub(super) const LOSSES: [Metric; 2] = [
    Metric {
        quantity: "perplexity",
        title: "perplexity",
        better: Better::Lower,
        format: "plain",
        unit: "",
        decimals: 2,
    },
    Metric { quantity: "loss", title: "loss", better: Better::Lower, format: "plain", unit: "", decimals: 4 },
];

/// A metric of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Reading {
    pub(super) value: f64,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) n: Option<f64>,
}

impl Metric {
    pub(super) fn read(&self, measurement: &Measurement) -> Option<Reading> {
        let part = |suffix: &str| measurement.quantities.get(&format!("{}{suffix}", self.quantity)).copied();
        Some(Reading { value: part("")?, interval: part(".low").zip(part(".high")), n: part(".n") })
    }

    /// The change against the baseline that was measured in pairs: in the metric's unit, percent where less is better.
    pub(super) fn change(&self, measurement: &Measurement) -> Option<Reading> {
        let part =
            |suffix: &str| measurement.quantities.get(&format!("{}.change{suffix}", self.quantity)).copied();
        Some(Reading { value: part("")?, interval: part(".low").zip(part(".high")), n: None })
    }

    /// `97.3 % [96.9, 97.6]  n 1797`, or what is missing of it.
    pub(super) fn figure(&self, reading: &Reading) -> String {
        let digits = self.decimals;
        let interval = match reading.interval {
            Some((low, high)) => format!(" [{low:.digits$}, {high:.digits$}]"),
            None => ", no interval recorded".to_owned(),
        };
        let n = reading.n.map_or(String::new(), |n| format!("  n {n}"));
        format!("{}{interval}{n}", self.short(reading))
    }

    pub(super) fn short(&self, reading: &Reading) -> String {
        format!("{:.*}{}", self.decimals, reading.value, self.unit)
    }

    /// `top-1 accuracy · higher is better`.
    pub(super) fn axis(&self) -> String {
        let better = if self.better == Better::Higher { "higher" } else { "lower" };
        format!("{} · {better} is better", self.title)
    }
}
