//! Devices that wait for their launches.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed, named};
use overdrive_bench::digits;
use overdrive_bench::series::{Basis, Series};
use overdrive_bench::statistics::Sorted;

/// Device time under this share of the time end to end: the rest is launching.
const LAUNCH_BOUND: f64 = 0.5;

/// Cases whose device works less than half of the time, the emptiest first.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| share(row).map(|_| row.record.case.study.clone()));
    let sentence = |(study, mut rows): (String, Vec<&JudgedRow<'_>>)| {
        let busy = |row: &JudgedRow<'_>| share(row).map_or(1.0, |(device, host)| device / host);
        rows.sort_by(|a, b| busy(a).total_cmp(&busy(b)));
        let said = |row: &&JudgedRow<'_>| {
            let (device, host) = share(row).unwrap_or_default();
            let times = (digits::time(device, None), digits::time(host, None));
            format!("{} works {} of {} end to end", named(row), times.0, times.1)
        };
        let items: Vec<String> = rows.iter().map(said).collect();
        let text = format!(
            "{study}: launch-bound, so larger batches, fusion or a captured graph would pay: {}.",
            listed(&items)
        );
        Finding::new(Topic::LaunchBound, text, rows)
    };
    groups.into_iter().map(sentence).collect()
}

/// Medians a call of device and host, where the first is under half of the second.
fn share(row: &JudgedRow<'_>) -> Option<(f64, f64)> {
    let series = row.measurement()?.latency.as_ref()?;
    let (device, host) = (series.summary.median_ns, host_median_ns(series)?);
    (series.conditions.basis == Basis::Device && device < LAUNCH_BOUND * host)
        .then_some((device, host))
}

fn host_median_ns(series: &Series) -> Option<f64> {
    let calls = series.conditions.calls_per_sample as f64;
    let times: Vec<f64> =
        series.samples.iter().map(|sample| sample.host_ns as f64 / calls).collect();
    Sorted::new(&times).map(|sorted| sorted.median())
}
