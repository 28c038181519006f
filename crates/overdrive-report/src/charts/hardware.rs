//! One case on several machines: shown, never judged. Machines differ in more than a figure can
//! say, so there is no ratio between them and no winner.

use super::bars::{BarChart, BarRow};
use super::chart::{Chart, MOST_ROWS, anchors, left_out};
use super::figures::{series, summary, time_row};
use super::plane::INKS;
use crate::judged::{JudgedResults, JudgedRow};
use crate::matrix;

/// A row for each machine under each case that several of `files` hold; none where they share no
/// case.
pub(crate) fn chart(files: &[&JudgedResults<'_>], machines: &[String]) -> Option<Chart> {
    let shared = matrix::shared(files);
    let most = MOST_ROWS / (files.len() + 1);
    let (mut rows, mut drawn): (Vec<BarRow>, Vec<&JudgedRow<'_>>) = (Vec::new(), Vec::new());
    for cells in shared.iter().take(most.max(1)) {
        let any = cells.iter().flatten().next().expect("a shared case has records");
        rows.push(BarRow::Heading(format!(
            "{} · {}",
            any.record.case.workload, any.record.case.configuration
        )));
        for ((cell, machine), ink) in cells.iter().zip(machines).zip(INKS[1..].iter().cycle()) {
            let Some(row) = cell else { continue };
            rows.push(alone(row, machine.clone(), ink));
            drawn.push(row);
        }
    }
    if rows.is_empty() {
        return None;
    }
    let title = "The same cases side by side".to_owned();
    let rows = BarChart {
        rows,
        axis: "time per call, each case on its own scale from 0 · lower is better".into(),
        legend: vec![],
    };
    Some(Chart {
        id: "hardware".into(),
        caption: format!(
            "Medians with their 95 % intervals, file by file. Sessions and machines are shown, \
             never judged.{}",
            left_out(shared.len().min(most.max(1)), shared.len(), "cases")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    })
}

/// The row without the gain over the baseline on its own machine, since this chart compares
/// machines.
fn alone(row: &JudgedRow<'_>, machine: String, ink: &'static str) -> BarRow {
    let bare = JudgedRow { gain: None, ..row.clone() };
    if series(row).is_none() {
        return time_row(row, machine, ink);
    }
    time_row(&bare, machine, ink)
}
