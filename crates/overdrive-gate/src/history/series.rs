//! The entries of one case, machine and metric in order of time, and where they changed: plain data
//! for whoever prints or draws it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::change_points::change_points;
use super::entry::HistoryEntry;
use overdrive_bench::hardware::Hardware;
use overdrive_bench::statistics::{Sorted, ratio_of_medians};

/// Seed of the permutations: the same history always says the same.
const SEED: u64 = 1;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistorySeries {
    /// The case's id.
    pub case: String,
    /// The machine.
    pub hardware: Hardware,
    /// The metric, with its unit.
    pub metric: String,
    /// Figures, oldest first.
    pub points: Vec<Point>,
    /// Changes of their level, oldest first.
    pub changes: Vec<LevelChange>,
}

/// A figure of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// When the run began, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// The commit that ran.
    pub commit: Option<String>,
    /// The figure, in the metric's unit.
    pub value: f64,
    /// Its interval, of times and of qualities that have one.
    pub interval: Option<[f64; 2]>,
}

/// A change from one level to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelChange {
    /// Index of the first point after it.
    pub index: usize,
    /// Median from the change before to here.
    pub before: f64,
    /// Median from here to the next change.
    pub after: f64,
    /// The p-value of the permutation test.
    pub p: f64,
    /// Runs behind the two levels, each a session: a change never rests on one.
    pub sessions: [usize; 2],
    /// How far apart the levels may be, after over before, with the interval over sessions of both;
    /// absent of figures that have no ratio.
    pub ratio_interval: Option<[f64; 2]>,
}

/// The series of a history, by case, machine and metric.
pub fn series(entries: &[HistoryEntry]) -> Vec<HistorySeries> {
    let mut keyed: BTreeMap<(&Hardware, &str, &str), Vec<&HistoryEntry>> = BTreeMap::new();
    for entry in entries {
        keyed.entry((&entry.hardware, &entry.case, &entry.metric)).or_default().push(entry);
    }
    let of_key =
        |((hardware, case, metric), mut entries): ((&Hardware, &str, &str), Vec<&HistoryEntry>)| {
            entries.sort_by_key(|entry| entry.unix_s);
            let values: Vec<f64> = entries.iter().map(|entry| entry.value).collect();
            let point = |entry: &&HistoryEntry| Point {
                unix_s: entry.unix_s,
                commit: entry.commit.clone(),
                value: entry.value,
                interval: entry.interval,
            };
            HistorySeries {
                case: case.to_owned(),
                hardware: hardware.clone(),
                metric: metric.to_owned(),
                points: entries.iter().map(point).collect(),
                changes: changes(&values),
            }
        };
    keyed.into_iter().map(of_key).collect()
}

/// Changes of the values' logarithms, since noise and gains are relative; of the values where one
/// is 0.
fn changes(values: &[f64]) -> Vec<LevelChange> {
    let positive = values.iter().all(|value| *value > 0.0);
    let scaled: Vec<f64> =
        values.iter().map(|value| if positive { value.ln() } else { *value }).collect();
    let found = change_points(&scaled, SEED);
    let median = |values: &[f64]| Sorted::new(values).expect("segments have values").median();
    let segment = |at: usize| {
        let from = if at == 0 { 0 } else { found[at - 1].index };
        from..found.get(at).map_or(values.len(), |change| change.index)
    };
    let change = |(at, change): (usize, &super::ChangePoint)| {
        let [before, after] = [segment(at), segment(at + 1)];
        let interval = positive.then(|| {
            ratio_of_medians(
                &Sorted::new(&values[after.clone()]).expect("segments have values"),
                &Sorted::new(&values[before.clone()]).expect("segments have values"),
                SEED,
            )
        });
        LevelChange {
            index: change.index,
            before: median(&values[before.clone()]),
            after: median(&values[after.clone()]),
            p: change.p,
            sessions: [before.len(), after.len()],
            ratio_interval: interval
                .flatten()
                .map(|ratio| [ratio.interval.low, ratio.interval.high]),
        }
    };
    found.iter().enumerate().map(change).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::history::entry::{HISTORY_VERSION, LATENCY};

    /// A day's runs at these medians.
    pub(in crate::history) fn entries(case: &str, values: &[f64]) -> Vec<HistoryEntry> {
        let hardware = Hardware::of(&overdrive_bench::testing::results().environment);
        let entry = |(day, value): (usize, &f64)| HistoryEntry {
            history_version: HISTORY_VERSION,
            unix_s: 1_795_190_709 + 86_400 * day as u64,
            commit: Some(format!("{day:02}23456789abcdef")),
            case: case.to_owned(),
            hardware: hardware.clone(),
            metric: LATENCY.to_owned(),
            value: *value,
            interval: None,
            samples: Some(20),
            depth: None,
        };
        values.iter().enumerate().map(entry).collect()
    }

    /// Wobbling by 1 % about one level and then another.
    pub(in crate::history) fn step(from: f64, to: f64) -> Vec<f64> {
        (0..24)
            .map(|i: u32| {
                (if i < 12 { from } else { to }) * (1.0 + 0.001 * f64::from(i * 7919 % 10))
            })
            .collect()
    }

    #[test]
    fn keys_are_kept_apart_and_time_orders_them() {
        let mut mixed = entries("a", &step(1e6, 1.1e6));
        mixed.reverse();
        mixed.extend(entries("b", &[1.0, 2.0]));
        let mut elsewhere = entries("a", &[5.0]);
        elsewhere[0].hardware.cpus = Some(64);
        mixed.extend(elsewhere);
        let found = series(&mixed);
        assert_eq!(
            found.iter().map(|s| (s.case.as_str(), s.points.len())).collect::<Vec<_>>(),
            [("a", 24), ("b", 2), ("a", 1)]
        );
        let [change] = &found[0].changes[..] else { panic!("{:?}", found[0].changes) };
        assert_eq!(change.index, 12);
        assert!((change.after / change.before - 1.1).abs() < 0.005, "{change:?}");
        assert_eq!(change.sessions, [12, 12]);
        let [low, high] = change.ratio_interval.unwrap();
        assert!(low > 1.08 && high < 1.12 && (low..=high).contains(&1.1), "{change:?}");
    }
}
