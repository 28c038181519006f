//! A measured ladder: each step the one before plus one change, with the gain over the step before
//! and over the first.

use super::bars::{Bar, BarChart, BarRow, PARTS, Piece};
use super::chart::{Chart, Study, anchors};
use super::figures::{interval, series, summary, tip};
use crate::judged::{JudgedResults, JudgedRow};
use overdrive_bench::digits;
use overdrive_bench::ladder::{Ladder, LadderKey};

pub(super) fn charts(judged: &JudgedResults<'_>, study: &Study<'_>) -> Vec<Chart> {
    let keys = judged.results.ladders.iter().enumerate();
    keys.filter_map(|(index, key)| chart(judged, study, index, key)).collect()
}

/// The chart of one ladder of this study. `None` if a step is missing; the text of the study says
/// so.
fn chart(
    judged: &JudgedResults<'_>,
    study: &Study<'_>,
    index: usize,
    key: &LadderKey,
) -> Option<Chart> {
    let steps: Vec<&JudgedRow<'_>> =
        key.rungs.iter().map(|rung| judged.find(&rung.case)).collect::<Option<_>>()?;
    if steps.first()?.record.case.study != study.name {
        return None;
    }
    let rungs: Vec<_> = key
        .rungs
        .iter()
        .zip(&steps)
        .map(|(rung, row)| (rung.change.as_str(), row.record))
        .collect();
    let ladder = Ladder::measured(&rungs).ok()?;
    let gains = std::iter::once(String::new()).chain(
        ladder.steps().iter().map(|step| format!("{PARTS}{} in all", step.over_first.figure())),
    );
    let mut rows = vec![BarRow::Heading(key.title.clone())];
    for (((row, rung), gain), first) in steps
        .iter()
        .zip(&key.rungs)
        .zip(gains)
        .zip(std::iter::once(true).chain(std::iter::repeat(false)))
    {
        let series = series(row)?;
        rows.push(BarRow::Bar(Bar {
            name: if first { rung.change.clone() } else { format!("+ {}", rung.change) },
            pieces: vec![Piece {
                length: series.summary.median_ns,
                ink: if first { "$c0" } else { "$c1" },
            }],
            interval: interval(series),
            figure: format!("{}{gain}", digits::time_of(&series.summary)),
            short: digits::time(series.summary.median_ns, None),
            tip: tip(row),
        }));
    }
    let title = "Cumulative ladder".to_owned();
    let rows =
        BarChart { rows, axis: "time per call, from 0 · lower is better".into(), legend: vec![] };
    Some(Chart {
        id: study.id(&format!("ladder-{}", index + 1)),
        caption: format!(
            "Each step is the one before plus one change, and every step was run. First over last \
             as measured, not a product: {}.",
            ladder.total()
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: summary(&title, &steps),
        records: anchors(steps),
        title,
    })
}
