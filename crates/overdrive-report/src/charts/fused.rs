//! Fused against unfused: the two times, and the speed-up with its interval.

use super::bars::{BarChart, BarRow};
use super::chart::{Chart, MOST_ROWS, Study, anchors, left_out};
use super::figures::{summary, time_row};
use crate::judged::{JudgedResults, JudgedRow};
use overdrive_bench::case::Configuration;

/// Words of a variant or a mode that name the two sides.
const SIDES: [(&str, &str); 3] = [("unfused", "fused"), ("expanded", "tiled"), ("jit", "compile")];

pub(super) fn charts(judged: &JudgedResults<'_>, study: &Study<'_>) -> Vec<Chart> {
    let pairs: Vec<(&JudgedRow<'_>, &JudgedRow<'_>)> =
        study.rows.iter().filter_map(|row| Some((pair(judged, row)?, *row))).collect();
    // The chart of times per call compares modes of whole models; this one shows the gain of fusing
    // alone.
    let fused = pairs.iter().any(|(_, row)| row.record.case.configuration.variant.is_some());
    if !fused {
        return Vec::new();
    }
    let most = MOST_ROWS / 3;
    let (mut rows, mut drawn) = (Vec::new(), Vec::new());
    for (unfused, fused) in pairs.iter().take(most) {
        rows.push(BarRow::Heading(fused.record.case.workload.to_string()));
        rows.push(time_row(unfused, word(&unfused.record.case.configuration), "$c0"));
        rows.push(time_row(fused, word(&fused.record.case.configuration), "$c1"));
        drawn.extend([*unfused, *fused]);
    }
    let title = "Fused against unfused".to_owned();
    let rows = BarChart {
        rows,
        axis: "time per call, each pair on its own scale from 0 · lower is better".into(),
        legend: vec![],
    };
    vec![Chart {
        id: study.id("fused"),
        caption: format!(
            "Median with its 95 % interval; behind the fused time, the speed-up and its \
             interval.{}",
            left_out(pairs.len().min(most), pairs.len(), "pairs")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    }]
}

/// The row that `row` is the fused form of.
fn pair<'j>(judged: &'j JudgedResults<'_>, row: &JudgedRow<'_>) -> Option<&'j JudgedRow<'j>> {
    let baseline = judged.find(row.record.baseline.as_ref()?)?;
    let words = (word(&baseline.record.case.configuration), word(&row.record.case.configuration));
    SIDES.iter().any(|(slow, fast)| words.0 == *slow && words.1 == *fast).then_some(baseline)
}

fn word(configuration: &Configuration) -> String {
    configuration.variant.clone().unwrap_or_else(|| configuration.mode.clone())
}
