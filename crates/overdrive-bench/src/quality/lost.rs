//! Quality that fell from one record of a case to the next. An accuracy does not depend on the
//! machine. Unlike a time, it is therefore judged also where a file was imported.

use super::{Reading, metrics};
use crate::record::Record;

/// Losses of a case between two records of it, a sentence for each measure: `accuracy halved: 0.750
/// to 0.375, no interval recorded`.
pub fn lost(before: &Record, now: &Record) -> Vec<String> {
    let (Some(before), Some(now)) = (before.outcome.measurement(), now.outcome.measurement())
    else {
        return Vec::new();
    };
    let said =
        metrics().filter_map(|metric| metric.loss(&metric.read(now)?, &metric.read(before)?));
    said.collect()
}

/// The same of two figures of one quantity, each with its interval where one is known.
pub fn lost_quantity(name: &str, [before, now]: [(f64, Option<[f64; 2]>); 2]) -> Option<String> {
    let metric = metrics().find(|metric| metric.quantity == name)?;
    let reading = |(value, interval): (f64, Option<[f64; 2]>)| Reading {
        value,
        interval: interval.map(|[low, high]| (low, high)),
        n: None,
    };
    metric.loss(&reading(now), &reading(before))
}

/// The interval of a quantity, where it is a measure of quality that has one.
pub fn interval(record: &Record, name: &str) -> Option<[f64; 2]> {
    let metric = metrics().find(|metric| metric.quantity == name)?;
    let (low, high) = metric.read(record.outcome.measurement()?)?.interval?;
    Some([low, high])
}
