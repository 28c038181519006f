//! Costs that are paid once, stacked in the order in which they are paid, and the number of calls
//! after which they are paid back.

use super::bars::{Bar, BarChart, BarRow, Piece};
use super::chart::{Chart, MOST_ROWS, Study, anchors, left_out};
use super::figures::names;
use crate::judged::JudgedRow;
use crate::side_tables::pays_back;
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;

/// The stages by the names of [`Overhead::stages`](overdrive_bench::measurement::Overhead::stages).
const STAGES: [(&str, &str); 5] = [
    ("load", "$c5"),
    ("compile", "$c1"),
    ("autotune", "$c4"),
    ("capture", "$c3"),
    ("first call", "$c2"),
];

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let known =
        |row: &&&JudgedRow<'_>| row.measurement().is_some_and(|m| m.overhead.stages().count() > 1);
    let groups: Vec<Vec<&JudgedRow<'_>>> = study
        .workloads()
        .map(|group| group.iter().filter(known).copied().collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
        .collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let (mut rows, mut drawn, mut shown) = (Vec::new(), Vec::new(), 0);
    for group in &groups {
        if shown > 0 && rows.len() + group.len() + 1 > MOST_ROWS {
            break;
        }
        shown += 1;
        rows.push(BarRow::Heading(group[0].record.case.workload.to_string()));
        for (row, name) in group.iter().zip(names(group)) {
            rows.push(BarRow::Bar(bar(
                row,
                row.measurement().expect("groups hold what ran"),
                name,
            )));
            drawn.push(*row);
        }
    }
    let title = "Paid once".to_owned();
    let rows = BarChart {
        rows,
        axis: "time before the steady state, each group on its own scale from 0 · lower is better"
            .into(),
        legend: STAGES
            .into_iter()
            .filter(|(name, _)| drawn.iter().any(|row| has(row, name)))
            .collect(),
    };
    vec![Chart {
        id: study.id("paid-once"),
        caption: format!(
            "Each stage is timed once (n 1, so without an interval) and is never part of a \
             latency. Behind it, the calls after which the faster steady state has paid for it.{}",
            left_out(shown, groups.len(), "workloads")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: format!("{title}: set-up, compilation and first call of {} cases", drawn.len()),
        records: anchors(drawn),
        title,
    }]
}

fn has(row: &JudgedRow<'_>, stage: &str) -> bool {
    row.measurement().is_some_and(|m| m.overhead.stages().any(|(name, _)| name == stage))
}

fn bar(row: &JudgedRow<'_>, measurement: &Measurement, name: String) -> Bar {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut words = Vec::new();
    for (stage, ink) in STAGES {
        let ns =
            measurement.overhead.stages().find(|(name, _)| *name == stage).map_or(0, |(_, ns)| ns);
        pieces.push(Piece { length: ns as f64, ink });
        if ns > 0 {
            words.push(format!("{stage} {}", digits::time(ns as f64, None)));
        }
    }
    let total = digits::time(pieces.iter().map(|piece| piece.length).sum(), None);
    let paid_back = pays_back(row).map_or(String::new(), |calls| {
        format!("   after {calls} {}", if calls == 1 { "call" } else { "calls" })
    });
    Bar {
        name,
        pieces,
        interval: None,
        figure: format!("{total}{paid_back}"),
        short: total,
        tip: format!("{}\n{}\n{}", row.record.case.workload, row.label, words.join(", ")),
    }
}
