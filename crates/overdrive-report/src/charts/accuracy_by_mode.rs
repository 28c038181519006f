//! Accuracy by mode: one bar from 0 for each mode, with its interval.

use super::chart::{Chart, Study};
use super::loss_by_mode::{by_mode, paired};
use crate::judged::JudgedRow;
use overdrive_bench::quality::{ACCURACIES, Measure, Reading};

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    ACCURACIES
        .iter()
        .filter_map(|metric| by_mode(study, metric, "Accuracy by mode", difference))
        .collect()
}

/// `(-0.31)`: points against the baseline, with the interval of pairs where it was taken so.
fn difference(metric: &Measure, row: &JudgedRow<'_>, reading: &Reading) -> Option<String> {
    if let Some(change) = row.measurement().and_then(|measurement| metric.change(measurement)) {
        return Some(format!("   ({:+.2}{})", change.value, paired(&change)));
    }
    let baseline = metric.read(row.baseline?.outcome.measurement()?)?;
    Some(format!("   ({:+.2})", reading.value - baseline.value))
}
