//! One line of a history: one figure of one case, when and of which revision.

use serde::{Deserialize, Serialize};

use overdrive_bench::hardware::Hardware;
use overdrive_bench::quality::lost;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::series::Depth;

/// Version of the lines. Raised whenever a field changes its meaning or disappears.
pub const HISTORY_VERSION: u32 = 1;

/// The metric of steady-state time per call.
pub const LATENCY: &str = "latency_ns";

/// The metric of the mean that another program reports.
pub const REPORTED: &str = "reported_mean_ns";

/// A figure at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// [`HISTORY_VERSION`] of the program that wrote it.
    pub history_version: u32,
    /// When its run began, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// The commit that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The case's id.
    pub case: String,
    /// The machine.
    pub hardware: Hardware,
    /// The metric, named with its unit: [`LATENCY`], `file_bytes`, `top1_percent`.
    pub metric: String,
    /// The figure: the median of times, or an exact quantity.
    pub value: f64,
    /// Its interval, of times and of qualities that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Samples behind it, of times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Whether it is from a screening.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<Depth>,
}

impl HistoryEntry {
    /// The lines that `results` give: a time and the exact quantities of every case that ran. A
    /// case without a figure gives none: its place in the history is empty, not zero.
    pub fn of(results: &Results) -> Vec<Self> {
        let hardware = Hardware::of(&results.environment);
        let of_record = |record: &Record| -> Vec<Self> {
            let Some(measurement) = record.outcome.measurement() else { return Vec::new() };
            let bare = |metric: &str, value: f64| Self {
                history_version: HISTORY_VERSION,
                unix_s: results.started_unix_s,
                commit: results.revision.commit.clone(),
                case: record.case.id(),
                hardware: hardware.clone(),
                metric: metric.to_owned(),
                value,
                interval: None,
                samples: None,
                depth: None,
            };
            let time = measurement.latency.as_ref().map(|series| {
                let interval = series.summary.median_interval;
                Self {
                    interval: interval.map(|interval| [interval.low_ns, interval.high_ns]),
                    samples: Some(series.summary.count),
                    depth: Some(series.conditions.depth),
                    ..bare(LATENCY, series.summary.median_ns)
                }
            });
            let reported =
                measurement.reported.as_ref().map(|reported| bare(REPORTED, reported.mean_ns));
            let exact = measurement.quantities.iter().map(|(name, value)| Self {
                interval: lost::interval(record, name),
                ..bare(name, *value)
            });
            time.into_iter().chain(reported).chain(exact).collect()
        };
        results.records.iter().flat_map(of_record).collect()
    }

    /// Whether two lines are of the same figure of the same run.
    pub fn is_same_figure(&self, other: &Self) -> bool {
        (self.unix_s, &self.commit, &self.case, &self.hardware, &self.metric)
            == (other.unix_s, &other.commit, &other.case, &other.hardware, &other.metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::failure::Failure;
    use overdrive_bench::testing::{record, results};

    #[test]
    fn what_ran_gives_lines_and_what_failed_gives_none() {
        let mut found = results();
        found.records = vec![record("compile", &[1000; 6]), record("eager", &[1000; 6])];
        found.records[1].outcome = Failure::failed("no such library").into();
        let measurement = found.records[0].outcome.measurement_mut().unwrap();
        measurement.quantities.insert("file_bytes".into(), 12.0);
        let entries = HistoryEntry::of(&found);
        let said: Vec<(&str, f64)> =
            entries.iter().map(|entry| (entry.metric.as_str(), entry.value)).collect();
        assert_eq!(said, [("latency_ns", 1000.0), ("file_bytes", 12.0)]);
        assert_eq!((entries[0].interval, entries[0].samples), (Some([1000.0, 1000.0]), Some(6)));
        assert!(!entries[0].is_same_figure(&entries[1]));
    }
}
