//! Loss by mode, with the relative increase over the baseline; and the layout that accuracy by mode
//! shares with it.

use super::bars::{Bar, BarChart, BarRow, Piece};
use super::chart::{Chart, MOST_ROWS, Study, anchors, left_out};
use super::figures::{ink, names, tip};
use crate::judged::JudgedRow;
use overdrive_bench::quality::{LOSSES, Measure, Reading};

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    LOSSES.iter().filter_map(|metric| by_mode(study, metric, "Loss by mode", increase)).collect()
}

/// `+1.2 %` over the baseline, with the interval of pairs where it was taken so.
fn increase(metric: &Measure, row: &JudgedRow<'_>, reading: &Reading) -> Option<String> {
    if let Some(change) = row.measurement().and_then(|measurement| metric.change(measurement)) {
        return Some(format!("   {:+.2} %{}", change.value, paired(&change)));
    }
    let baseline = metric.read(row.baseline?.outcome.measurement()?)?;
    (baseline.value > 0.0)
        .then(|| format!("   {:+.1} %", 100.0 * (reading.value / baseline.value - 1.0)))
}

/// ` [-0.30, +0.05]`, the interval of a change.
pub(super) fn paired(change: &Reading) -> String {
    change.interval.map_or(String::new(), |(low, high)| format!(" [{low:+.2}, {high:+.2}]"))
}

/// The text after a figure: its change against the baseline.
type ChangeText = fn(&Measure, &JudgedRow<'_>, &Reading) -> Option<String>;

/// Rows of every case of the study that has `metric`, and a slot for each that failed beside one
/// that has it.
pub(super) fn by_mode(
    study: &Study<'_>,
    metric: &Measure,
    title: &str,
    change: ChangeText,
) -> Option<Chart> {
    let has = |row: &JudgedRow<'_>| row.measurement().is_some_and(|m| metric.read(m).is_some());
    let groups: Vec<&[&JudgedRow<'_>]> = study
        .workloads()
        .filter(|group| group.len() > 1 && group.iter().any(|row| has(row)))
        .collect();
    let (mut rows, mut drawn, mut shown, mut inks) = (Vec::new(), Vec::new(), 0, Vec::new());
    for group in &groups {
        if shown > 0 && rows.len() + group.len() + 1 > MOST_ROWS {
            break;
        }
        shown += 1;
        rows.push(BarRow::Heading(group[0].record.case.workload.to_string()));
        for (row, name) in group.iter().zip(names(group)) {
            match (row.record.outcome.failure(), row.measurement().and_then(|m| metric.read(m))) {
                (Some(failure), _) => rows.push(BarRow::Slot { name, reason: failure.to_string() }),
                (None, Some(reading)) => {
                    let ink = ink(&name, row, &mut inks);
                    let change = change(metric, row, &reading).unwrap_or_default();
                    rows.push(BarRow::Bar(bar(metric, row, &reading, (name, ink, change))));
                }
                (None, None) => continue,
            }
            drawn.push(*row);
        }
    }
    if drawn.is_empty() {
        return None;
    }
    let rows = BarChart { rows, axis: format!("from 0: {}", metric.axis()), legend: vec![] };
    let figures = drawn.iter().filter_map(|row| {
        Some(format!("{}: {}", row.label, metric.figure(&metric.read(row.measurement()?)?)))
    });
    Some(Chart {
        id: study.id(&format!("{}-by-mode", metric.quantity)),
        caption: format!(
            "{}; grey is the baseline, the last figure the change against it.{}",
            metric.axis(),
            left_out(shown, groups.len(), "workloads")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: format!("{title}. {}", figures.take(6).collect::<Vec<_>>().join("; ")),
        records: anchors(drawn.iter().copied()),
        title: format!("{title}: {}", metric.title),
    })
}

fn bar(
    metric: &Measure,
    row: &JudgedRow<'_>,
    reading: &Reading,
    (name, ink, change): (String, &'static str, String),
) -> Bar {
    Bar {
        name,
        pieces: vec![Piece { length: reading.value, ink }],
        interval: reading.interval,
        figure: metric.figure(reading) + &change,
        short: metric.short(reading) + &change,
        tip: format!("{}\n{}", tip(row), metric.figure(reading)),
    }
}
