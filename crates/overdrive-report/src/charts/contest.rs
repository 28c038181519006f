//! Models against every engine and peer. Each of these stands with the fastest configuration that
//! it has, beside the fastest that any study of the model found.

use std::collections::BTreeSet;

use super::bars::{BarChart, BarRow};
use super::chart::{Chart, MOST_ROWS, anchors, left_out};
use super::figures::{ink, series, summary, time_row};
use crate::decision::Decision;
use crate::judged::{JudgedResults, JudgedRow};
use crate::leaders::believed;
use overdrive_bench::speedup::Speedup;

/// The chart of the study in which most back ends ran one workload; none where only one ran
/// anything.
pub(crate) fn chart(judged: &JudgedResults<'_>, decision: &Decision) -> Option<Chart> {
    let of_study = |study: &str| -> Vec<Vec<&JudgedRow<'_>>> {
        let rows = judged.study(study);
        let groups = rows.chunk_by(|a, b| a.record.case.workload == b.record.case.workload);
        groups.filter(|group| backends(group).len() > 1).map(<[_]>::to_vec).collect()
    };
    let most =
        |groups: &Vec<Vec<&JudgedRow<'_>>>| groups.iter().map(|group| backends(group).len()).max();
    let studies = judged.results.studies().into_iter().map(|study| (study, of_study(study)));
    // The first of those that are alike: `max_by_key` takes the last.
    let studies: Vec<_> = studies.filter(|(_, groups)| !groups.is_empty()).collect();
    let (study, groups) = studies.into_iter().rev().max_by_key(|(_, groups)| most(groups))?;
    let (mut drawn, mut lines, mut inks, mut shown) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for group in &groups {
        let best = against(judged, decision, best_of_each(judged, group));
        let rows: Vec<&JudgedRow<'_>> = best.iter().collect();
        if shown > 0 && lines.len() + best.len() + 1 > MOST_ROWS {
            break;
        }
        shown += 1;
        lines.push(BarRow::Heading(group[0].record.case.workload.to_string()));
        for row in rows {
            let ink = ink(&row.label, row, &mut inks);
            lines.push(time_row(row, row.label.clone(), ink));
        }
        drawn.extend(best);
    }
    let name = &groups[0][0].record.case.workload.name;
    let is_one = groups.iter().all(|group| group[0].record.case.workload.name == *name);
    let title = format!("{} on every engine", if is_one { name.as_str() } else { study });
    let drawn: Vec<&JudgedRow<'_>> = drawn.iter().collect();
    let rows = BarChart {
        rows: lines,
        axis: "time per call, each group on its own scale from 0 · lower is better".into(),
        legend: vec![],
    };
    Some(Chart {
        id: "contest".into(),
        caption: format!(
            "The fastest configuration of each back end, engine and peer, and the fastest of all: \
             median of n calls with its 95 % interval; the last figure is the speed-up over {}.{}",
            baseline(&drawn),
            left_out(shown, groups.len(), "workloads")
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    })
}

/// The rows and the fastest that any study found of their workload, soonest first, each compared
/// with what the decision compares with.
fn against<'j, 'r>(
    judged: &'j JudgedResults<'r>,
    decision: &Decision,
    mut rows: Vec<&'j JudgedRow<'r>>,
) -> Vec<JudgedRow<'r>> {
    let workload = rows[0].record.case.workload.to_string();
    let subject = decision.subjects.iter().find(|subject| subject.workload == workload);
    let find = |id: Option<&String>| id.and_then(|id| judged.find(id));
    let fastest = find(subject.and_then(|subject| subject.cards[0].id.as_ref()));
    let baseline = find(subject.and_then(|subject| subject.baseline.as_ref()));
    // Several studies may have timed one configuration: one name has the decision's figure.
    for row in &mut rows {
        let same = |one: &&JudgedRow<'r>| one.label == row.label;
        *row = baseline.into_iter().chain(fastest).find(same).unwrap_or(*row);
    }
    rows.extend(fastest.filter(|row| rows.iter().all(|other| other.id != row.id)));
    rows.sort_by(|a, b| median(a).total_cmp(&median(b)));
    let Some(baseline) = baseline else { return rows.into_iter().cloned().collect() };
    let compared = |row: &JudgedRow<'r>| {
        let gain = || Speedup::between(baseline.record, row.record);
        JudgedRow {
            over: Some(baseline.label.clone()),
            gain: (row.id != baseline.id).then(gain),
            is_baseline: row.id == baseline.id,
            ..row.clone()
        }
    };
    rows.into_iter().map(compared).collect()
}

/// Names the baseline of the rows: by its name if all have the same one, and by its ink if it is
/// drawn.
fn baseline(rows: &[&JudgedRow<'_>]) -> String {
    let all: BTreeSet<&String> = rows.iter().filter_map(|row| row.over.as_ref()).collect();
    let is_drawn = rows.iter().any(|row| row.is_baseline);
    match (all.len(), all.first(), is_drawn) {
        (1, Some(name), false) => (*name).clone(),
        (1, Some(name), true) => format!("{name}, which is grey"),
        (_, _, true) => "the baseline, which is grey".to_owned(),
        (_, _, false) => "the study's baseline".to_owned(),
    }
}

/// Those that gave a time.
fn backends<'j>(rows: &[&'j JudgedRow<'_>]) -> BTreeSet<(&'j str, &'j str)> {
    rows.iter().filter(|row| series(row).is_some()).map(|row| backend(row)).collect()
}

fn backend<'j>(row: &'j JudgedRow<'_>) -> (&'j str, &'j str) {
    (&row.record.case.configuration.backend, &row.record.case.configuration.device)
}

/// For each back end, its fastest row that can be believed. If there is none, any row that ran;
/// otherwise the row that says why it did not run.
fn best_of_each<'j, 'r>(
    judged: &JudgedResults<'r>,
    group: &[&'j JudgedRow<'r>],
) -> Vec<&'j JudgedRow<'r>> {
    let rank = |row: &JudgedRow<'r>| (believed(judged, row).is_none(), median(row));
    let mut sorted = group.to_vec();
    sorted.sort_by(|a, b| rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1)));
    let mut seen = BTreeSet::new();
    sorted.retain(|row| seen.insert(backend(row)));
    sorted
}

fn median(row: &JudgedRow<'_>) -> f64 {
    series(row).map_or(f64::INFINITY, |series| series.summary.median_ns)
}
