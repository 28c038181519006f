//! Checks that a results file agrees with itself. Derived figures are derived again, and facts that
//! are recorded twice are compared.
//!
//! The evidence is tamper-evident by consistency, not by cryptography. Whoever edits one number of
//! a measurement must edit every other number that follows from it. The same holds for numbers that
//! the machine wrote down beside it.

mod derived;
mod inconsistency;
pub mod physics;
mod sessions;
#[cfg(test)]
mod tests;
mod timing;

pub use inconsistency::Inconsistency;

use std::collections::BTreeSet;

use crate::results::{OLDEST_VERSION, Results, SCHEMA_VERSION};
use inconsistency::SUMMARY;

/// Checks what the types cannot: version, one record a case, references that lead somewhere,
/// and that everything derived or recorded twice agrees.
///
/// # Errors
/// The first inconsistency.
pub fn check(results: &Results) -> Result<(), Inconsistency> {
    if !(OLDEST_VERSION..=SCHEMA_VERSION).contains(&results.schema_version) {
        return Err(Inconsistency::Version { found: results.schema_version });
    }
    let mut ids = BTreeSet::new();
    for record in &results.records {
        let case = record.case.id();
        if !ids.insert(case.clone()) {
            return Err(Inconsistency::Duplicate { case });
        }
    }
    let baselines =
        results.records.iter().filter_map(|r| Some((r.case.id(), r.baseline.as_ref()?)));
    let rungs = results
        .ladders
        .iter()
        .flat_map(|l| l.rungs.iter().map(|rung| (l.title.clone(), &rung.case)));
    match baselines.chain(rungs).find(|(_, case)| !ids.contains(*case)) {
        Some((from, case)) => Err(Inconsistency::Missing { from, case: case.clone() }),
        None => check_contents(results),
    }
}

/// Every record, then what several records must have in common.
fn check_contents(results: &Results) -> Result<(), Inconsistency> {
    for record in &results.records {
        let Some(measurement) = record.outcome.measurement() else { continue };
        let told = derived::check(results, measurement)
            .and_then(|()| measurement.latency.as_ref().map_or(Ok(()), timing::check))
            .and_then(|()| timing::witnesses(measurement))
            .and_then(|()| physics::check(&results.environment, &record.case, measurement));
        told.map_err(|why| Inconsistency::Contradiction { case: record.case.id(), why })?;
    }
    let apart = results.ceilings.iter().map(|ceiling| (ceiling.name.as_str(), &ceiling.series));
    let harness = results.harness_overhead.iter().map(|series| ("the harness", series));
    for (name, series) in apart.chain(harness) {
        let told = series.is_consistent().then_some(()).ok_or_else(|| SUMMARY.to_owned());
        told.and_then(|()| timing::check(series))
            .map_err(|why| Inconsistency::Contradiction { case: name.to_owned(), why })?;
    }
    derived::check_items(results).and_then(|()| sessions::check(results))
}
