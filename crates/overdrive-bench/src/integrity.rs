//! Whether a results file agrees with itself: what is derived is derived again, and what is
//! recorded twice is compared.
//!
//! Tamper-evident by consistency, not by cryptography: who edits one number of a measurement must
//! find and edit every other number that follows from it, or that the machine wrote down beside it.

mod derived;
pub(crate) mod physics;
mod sessions;
#[cfg(test)]
mod tests;
mod timing;

pub(crate) use derived::{is_derived, nearly_equal};

use crate::results::{Inconsistency, Results};

/// Checks every record, then what several records must have in common.
///
/// # Errors
/// The first contradiction, with its case.
pub(crate) fn check(results: &Results) -> Result<(), Inconsistency> {
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

/// Said where labels or a summary do not follow from samples.
const SUMMARY: &str = "its summary or its labels do not follow from its samples";
