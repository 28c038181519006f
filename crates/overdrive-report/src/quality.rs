//! How two rows of a report differ in a measure of quality, and how a chart writes it.

use super::judged::JudgedRow;
use overdrive_bench::quality::{Better, Difference, Measure, Reading};

/// How `row` differs from `other` in this metric; `None` where one of them does not have it.
pub(super) fn difference(
    metric: &Measure,
    row: &JudgedRow<'_>,
    other: &JudgedRow<'_>,
) -> Option<Difference> {
    let (mine, its) = (row.measurement()?, other.measurement()?);
    let (found, reference) = (metric.read(mine)?, metric.read(its)?);
    if row.record.baseline.as_ref() == Some(&other.id)
        && let Some(change) = metric.change(mine).and_then(|change| change.interval)
    {
        return Some(metric.excludes_zero(change));
    }
    if other.record.baseline.as_ref() == Some(&row.id)
        && let Some((low, high)) = metric.change(its).and_then(|change| change.interval)
    {
        return Some(metric.excludes_zero((-low, -high)));
    }
    Some(metric.between(&found, &reference))
}

/// Less is better: the value of a row with its sign, last of all where it has none.
pub(super) fn rank(metric: &Measure, row: &JudgedRow<'_>) -> f64 {
    let reading = row.measurement().and_then(|measurement| metric.read(measurement));
    reading.map_or(f64::INFINITY, |reading| -metric.sign() * reading.value)
}

/// `rose by 0.31 % [0.21, 0.41]: 20.11 to 20.17`, where a row was compared with its baseline
/// sample by sample; else [`Measure::course`].
pub(super) fn course(
    metric: &Measure,
    row: &JudgedRow<'_>,
    baseline: &JudgedRow<'_>,
) -> Option<String> {
    let (now, before) = (metric.read(row.measurement()?)?, metric.read(baseline.measurement()?)?);
    let change =
        metric.change(row.measurement()?).filter(|_| metric.short(&now) != metric.short(&before));
    let Some(Reading { value, interval: Some((low, high)), .. }) = change else {
        return Some(metric.course(&now, &before));
    };
    let unit = match (metric.better, metric.unit) {
        (Better::Lower, _) => " %",
        (_, " %") => " points",
        (_, unit) => unit,
    };
    let (word, low, high) = if value > 0.0 { ("rose", low, high) } else { ("fell", -high, -low) };
    let [before, now] = [before, now].map(|reading| metric.short(&reading));
    let by = value.abs();
    Some(format!("{word} by {by:.2}{unit} [{low:.2}, {high:.2}]: {before} to {now}"))
}

/// How `charts.js` writes its figures.
pub(super) fn format(metric: &Measure) -> &'static str {
    if metric.unit == " %" { "percent" } else { "plain" }
}
