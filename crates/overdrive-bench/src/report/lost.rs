//! Quality that fell from one results file to the next. An accuracy does not hang on the machine,
//! so that unlike a time it is judged, also where a file was imported.

use super::machines;
use super::quality::{Reading, metrics};
use crate::record::Record;
use crate::results::Results;

/// What the case lost between two records of it, a sentence for each measure: `accuracy halved:
/// 0.750 to 0.375, no interval recorded`.
pub(crate) fn lost(before: &Record, now: &Record) -> Vec<String> {
    let (Some(before), Some(now)) = (before.outcome.measurement(), now.outcome.measurement())
    else {
        return Vec::new();
    };
    let said =
        metrics().filter_map(|metric| metric.loss(&metric.read(now)?, &metric.read(before)?));
    said.collect()
}

/// The same of two figures of one quantity, each with its interval where one is known.
pub(crate) fn lost_quantity(
    name: &str,
    [before, now]: [(f64, Option<[f64; 2]>); 2],
) -> Option<String> {
    let metric = metrics().find(|metric| metric.quantity == name)?;
    let reading = |(value, interval): (f64, Option<[f64; 2]>)| Reading {
        value,
        interval: interval.map(|[low, high]| (low, high)),
        n: None,
    };
    metric.loss(&reading(now), &reading(before))
}

/// The interval of a quantity, where it is a measure of quality that has one.
pub(crate) fn interval(record: &Record, name: &str) -> Option<[f64; 2]> {
    let metric = metrics().find(|metric| metric.quantity == name)?;
    let (low, high) = metric.read(record.outcome.measurement()?)?.interval?;
    Some([low, high])
}

/// Every loss from a file to the next that holds the same case, oldest first. A file that does not
/// say when it was measured counts as older than those that do.
pub(super) fn between(files: &[Results]) -> Vec<String> {
    let mut named: Vec<(&Results, String)> = files.iter().zip(machines::names(files)).collect();
    named.sort_by_key(|(results, _)| results.started_unix_s);
    let mut said = Vec::new();
    for (at, (newer, name)) in named.iter().enumerate() {
        for now in &newer.records {
            let id = now.case.id();
            let earlier = named[..at].iter().rev();
            let found = earlier.filter_map(|(older, from)| Some((older.record(&id)?, from))).next();
            let Some((before, from)) = found else { continue };
            said.extend(
                lost(before, now)
                    .into_iter()
                    .map(|loss| format!("`{id}`: {loss} ({from}; {name})")),
            );
        }
    }
    said
}
