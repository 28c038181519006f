//! The words at a mark: a case's name among its neighbours, its figure with interval and n, and its
//! tooltip.

use std::collections::BTreeSet;

use super::bars::{Bar, BarRow, PARTS, Piece};
use super::plane::INKS;
use crate::judged::JudgedRow;
use overdrive_bench::case::Configuration;
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::series::Series;

/// The name of each row among the others: the parts of its configuration in which they differ.
pub(super) fn names(rows: &[&JudgedRow<'_>]) -> Vec<String> {
    let parts: [fn(&Configuration) -> String; 6] = [
        |c| c.backend.clone(),
        |c| if c.device == c.backend { String::new() } else { c.device.clone() },
        |c| c.mode.clone(),
        |c| c.dtype.clone(),
        |c| if c.threads == 0 { String::new() } else { format!("t{}", c.threads) },
        |c| c.variant.clone().unwrap_or_default(),
    ];
    let all: Vec<Configuration> =
        rows.iter().map(|row| row.record.case.configuration.shown()).collect();
    let differs = |part: fn(&Configuration) -> String| {
        all.iter().map(part).collect::<BTreeSet<_>>().len() > 1
    };
    let telling: Vec<_> = parts.into_iter().filter(|part| differs(*part)).collect();
    let telling = if telling.is_empty() { vec![parts[2]] } else { telling };
    let name = |c: &Configuration| {
        let words: Vec<String> =
            telling.iter().map(|part| part(c)).filter(|text| !text.is_empty()).collect();
        // If the others have a variant and this one has none, it is named by mode and format.
        if words.is_empty() { format!("{} {}", c.mode, c.dtype) } else { words.join(" ") }
    };
    all.iter().map(name).collect()
}

/// A colour for each name, the same wherever the name recurs: grey for a baseline, then the palette
/// in order.
pub(super) fn ink(name: &str, row: &JudgedRow<'_>, known: &mut Vec<String>) -> &'static str {
    if row.is_baseline {
        return INKS[0];
    }
    let at = known.iter().position(|other| other == name).unwrap_or_else(|| {
        known.push(name.to_owned());
        known.len() - 1
    });
    INKS[1 + at % (INKS.len() - 1)]
}

pub(super) fn series<'r>(row: &JudgedRow<'r>) -> Option<&'r Series> {
    row.measurement()?.latency.as_ref()
}

/// The interval of the median, in nanoseconds.
pub(super) fn interval(series: &Series) -> Option<(f64, f64)> {
    series.summary.median_interval.map(|i| (i.low_ns, i.high_ns))
}

/// `1.23 ms [1.22, 1.25]  n 20`.
pub(super) fn time(series: &Series) -> String {
    let none =
        if series.summary.median_interval.is_none() { " (too few for an interval)" } else { "" };
    format!("{}  n {}{none}", digits::time_of(&series.summary), series.summary.count)
}

/// Case, figure, gain, statuses.
pub(super) fn tip(row: &JudgedRow<'_>) -> String {
    let case = &row.record.case;
    let mut lines = vec![case.workload.to_string(), row.label.clone()];
    lines.extend(series(row).map(|series| {
        let summary = &series.summary;
        let [low, high] = [summary.min_ns, summary.max_ns].map(|ns| digits::time(ns, None));
        format!("{}, from {low} to {high}", time(series))
    }));
    lines.extend(row.speedup().map(ToString::to_string));
    let statuses = row.measurement().map_or(&[][..], |m| &m.statuses);
    lines.extend(statuses.iter().map(ToString::to_string));
    lines.join("\n")
}

/// The row of a chart of times; a case without a time is a slot with its reason.
pub(super) fn time_row(row: &JudgedRow<'_>, name: String, ink: &'static str) -> BarRow {
    let Some(series) = series(row) else {
        let reason = match row.record.outcome.failure() {
            Some(failure) => failure.to_string(),
            None => row
                .measurement()
                .and_then(Measurement::printed_time)
                .unwrap_or("not timed".to_owned()),
        };
        return BarRow::Slot { name, reason };
    };
    let gain = row.speedup().map_or(String::new(), |gain| format!("{PARTS}{}", gain.figure()));
    BarRow::Bar(Bar {
        name,
        pieces: vec![Piece { length: series.summary.median_ns, ink }],
        interval: interval(series),
        figure: time(series) + &gain,
        short: digits::time(series.summary.median_ns, None),
        tip: tip(row),
    })
}

/// `8 of 9 cases ran. The slowest: ...`: the figures themselves stand in the tables.
pub(super) fn summary(title: &str, rows: &[&JudgedRow<'_>]) -> String {
    let ran = rows.iter().filter(|row| row.measurement().is_some()).count();
    let figures = rows.iter().take(6).filter_map(|row| {
        Some(format!("{} {}: {}", row.record.case.workload, row.label, time(series(row)?)))
    });
    let figures: Vec<String> = figures.collect();
    format!("{title}. {ran} of {} cases have figures. {}", rows.len(), figures.join("; "))
}
