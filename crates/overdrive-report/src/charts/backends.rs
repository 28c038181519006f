//! Time per call, grouped by workload: one bar for each back end, mode and precision, a hatched
//! slot for what did not run.

use super::bars::{BarChart, BarRow};
use super::chart::{Chart, MOST_ROWS, Study, anchors, left_out};
use super::figures::{ink, names, series, summary, time_row};
use crate::judged::JudgedRow;

/// In the chart's id, behind the study's name.
pub(crate) const TIME_PER_CALL: &str = "time-per-call";

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let has_figure =
        |row: &&JudgedRow<'_>| series(row).is_some() || row.record.outcome.failure().is_some();
    let drawn = |group: &&[&JudgedRow<'_>]| group.len() > 1 && group.iter().any(has_figure);
    let groups: Vec<&[&JudgedRow<'_>]> = study.workloads().filter(drawn).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let (mut rows, mut drawn, mut shown, mut inks) = (Vec::new(), Vec::new(), 0, Vec::new());
    for group in &groups {
        if shown > 0 && rows.len() + group.len() + 1 > MOST_ROWS {
            break;
        }
        shown += 1;
        rows.push(BarRow::Heading(group[0].record.case.workload.to_string()));
        let group = &group[..group.len().min(MOST_ROWS)];
        drawn.extend(group.iter().copied());
        if let Some(slot) = all_alike(group) {
            rows.push(slot);
            continue;
        }
        for (row, name) in group.iter().zip(names(group)) {
            let ink = ink(&name, row, &mut inks);
            rows.push(time_row(row, name, ink));
        }
    }
    let title = "Time per call".to_owned();
    let rows = BarChart {
        rows,
        axis: "time per call, each group on its own scale from 0 · lower is better".into(),
        legend: vec![],
    };
    vec![Chart {
        id: study.id(TIME_PER_CALL),
        caption: format!(
            "Median with its 95 % interval; grey is the baseline, the last figure the speed-up \
             over it.{}",
            left_out(shown, groups.len(), "workloads")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    }]
}

/// One slot for a group where nothing ran, all for the same reason.
fn all_alike(group: &[&JudgedRow<'_>]) -> Option<BarRow> {
    let failure = group[0].record.outcome.failure()?;
    let alike = group.iter().all(|row| row.record.outcome.failure() == Some(failure));
    alike.then(|| BarRow::Slot { name: names(group).join(", "), reason: failure.to_string() })
}
