//! The winners beside the baseline and beside other engines, in one table. Things that a reader
//! weighs against each other stand in one column, and are compared with one thing.

use super::super::judged::JudgedRow;
use super::super::leaders::believed;
use super::card::Card;
use super::question::{Question, size, time};
use overdrive_bench::digits;
use overdrive_bench::quality::metrics;
use overdrive_bench::speedup::Speedup;
use overdrive_bench::table::{Align, Table, UNKNOWN};

/// The table of a workload; `None` where it would have one row.
pub(super) fn table(
    question: &Question<'_, '_>,
    baseline: &JudgedRow<'_>,
    cards: &[Card; 3],
) -> Option<Table> {
    let mut rows: Vec<(&JudgedRow<'_>, Vec<&str>)> = vec![(baseline, vec!["baseline"])];
    for card in cards {
        let Some(id) = &card.id else { continue };
        let Some(row) = question.rows.iter().copied().find(|row| row.id == *id) else { continue };
        match rows.iter_mut().find(|(other, _)| other.id == row.id) {
            Some((_, titles)) => titles.push(card.title),
            None => rows.push((row, vec![card.title])),
        }
    }
    // The fastest row of every other engine.
    for row in soonest(question) {
        let engine = |row: &JudgedRow<'_>| row.record.case.configuration.backend.clone();
        if rows.iter().all(|(other, _)| engine(other) != engine(row)) {
            rows.push((row, vec!["fastest of its engine"]));
        }
    }
    if rows.len() < 2 {
        return None;
    }
    let size = size(question);
    let metric = metrics().find(|metric| {
        rows.iter().any(|(row, _)| row.measurement().is_some_and(|m| metric.read(m).is_some()))
    });
    let unknown = || UNKNOWN.to_owned();
    let title_of_size = size.as_ref().map_or_else(unknown, |size| size.name.clone());
    let title = metric.map_or(UNKNOWN, |metric| metric.title).to_owned();
    let over = format!("over {}", baseline.label);
    let mut table = Table::new(&[
        ("Configuration".to_owned(), Align::Left),
        ("".to_owned(), Align::Left),
        ("Time".to_owned(), Align::Right),
        (over, Align::Right),
        (title_of_size, Align::Right),
        (title, Align::Right),
    ]);
    for (row, titles) in rows {
        let gain = Speedup::between(baseline.record, row.record);
        let reading = metric.zip(row.measurement()).and_then(|(metric, m)| metric.read(m));
        let bytes = size.as_ref().and_then(|size| size.of(row));
        table.push(vec![
            row.label.clone(),
            titles.join(", ").to_lowercase(),
            time(row),
            match gain {
                _ if row.id == baseline.id => unknown(),
                Ok(gain) => gain.figure(),
                Err(_) => unknown(),
            },
            bytes.map_or_else(unknown, digits::bytes),
            metric
                .zip(reading)
                .map_or_else(unknown, |(metric, found)| metric.with_interval(&found)),
        ]);
    }
    Some(table.without_unknown_columns())
}

/// The row that the fastest is compared with, else the first that was timed and is compared with
/// nothing.
pub(super) fn baseline<'j, 'r>(question: &Question<'j, 'r>) -> Option<&'j JudgedRow<'r>> {
    let of_lead = || {
        let id = question.lead.as_ref()?.winner.record.baseline.as_deref()?;
        question.rows.iter().copied().find(|row| row.id == id)
    };
    let first = || question.timed.iter().copied().find(|row| row.record.baseline.is_none());
    of_lead().or_else(first)
}

/// The rows whose times are believed, the soonest first.
fn soonest<'j, 'r>(question: &Question<'j, 'r>) -> Vec<&'j JudgedRow<'r>> {
    let mut timed: Vec<(f64, &'j JudgedRow<'r>)> = question
        .timed
        .iter()
        .filter_map(|row| {
            let (_, series) = believed(question.judged, row)?;
            Some((series.summary.median_ns, *row))
        })
        .collect();
    timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    timed.into_iter().map(|(_, row)| row).collect()
}
