//! Reads the observation of a case by a process from a measurement.

use std::collections::BTreeSet;

use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::memory::{MemoryUse, Peak};
use overdrive_bench::statistics::Sorted;
use overdrive_bench::status::StatusKind;
use overdrive_bench::verdicts::{MEAN, MEDIAN, Observed, P95, P99};

/// The figures of a measurement, unless its samples say that they are wrong.
pub(super) fn of(measurement: &Measurement) -> Result<Observed, Failure> {
    let statuses: BTreeSet<StatusKind> =
        measurement.statuses.iter().map(|status| status.kind).collect();
    // One sample out of line leaves a process's median alone; what follows says that the median
    // is wrong.
    let disbelieved = measurement
        .statuses
        .iter()
        .find(|status| matches!(status.kind, StatusKind::Invalid | StatusKind::Suspect));
    if let Some(status) = disbelieved {
        return Err(Failure::failed(status.to_string()));
    }
    let mut figures = measurement.quantities.clone();
    let series = measurement.latency.as_ref();
    if let Some(summary) = series.map(|series| &series.summary) {
        figures.extend(times(summary.median_ns, summary.mean_ns, [summary.p95_ns, summary.p99_ns]));
    }
    figures.extend(measurement.memory.as_ref().into_iter().flat_map(memory));
    let cycles = series.and_then(|series| {
        let calls = series.conditions.calls_per_sample as f64;
        let cycles: Option<Vec<f64>> =
            series.samples.iter().map(|sample| Some(sample.cycles? as f64 / calls)).collect();
        Some(Sorted::new(&cycles?)?.median())
    });
    Ok(Observed { figures, cycles, agrees: measurement.agreement.is_some(), statuses })
}

/// The figures of a case's times; a tail of too few samples is none.
pub(super) fn times(
    median_ns: f64,
    mean_ns: f64,
    tails: [Option<f64>; 2],
) -> impl Iterator<Item = (String, f64)> {
    let figures =
        [(MEDIAN, Some(median_ns)), (MEAN, Some(mean_ns)), (P95, tails[0]), (P99, tails[1])];
    figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?)))
}

/// Peaks of every witness that was there.
fn memory(memory: &MemoryUse) -> impl Iterator<Item = (String, f64)> {
    let peak = |peak: &Option<Peak>| peak.map(|peak| peak.peak_bytes);
    let figures = [
        ("planned_arena_bytes", memory.planned_arena_bytes),
        ("heap_peak_bytes", peak(&memory.heap)),
        ("resident_peak_bytes", peak(&memory.resident)),
        ("device_peak_bytes", peak(&memory.device)),
    ];
    figures.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes? as f64)))
}
