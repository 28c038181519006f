//! Derives again all figures that follow from other numbers of the file.

use std::collections::BTreeMap;

use super::inconsistency::{Inconsistency, SUMMARY};
use crate::measurement::Measurement;
use crate::nearly_equal::close;
use crate::results::Results;
use crate::series::Stopped;
use crate::status::gate;

/// The precision at which sampling stops, with room for rounding
/// (`rules::Rules::relative_half_width`).
const PRECISE: f64 = 0.01 * (1.0 + 1e-6);

/// Summary, statuses, the reason for stopping, shares of ceilings.
pub(super) fn check(results: &Results, measurement: &Measurement) -> Result<(), String> {
    if let Some(reported) = &measurement.reported {
        reported.check().map_err(|failure| failure.reason)?;
    }
    let mut found =
        measurement.reported.as_ref().map(|reported| reported.gate()).unwrap_or_default();
    if let Some(series) = &measurement.latency {
        if !series.is_consistent() {
            return Err(SUMMARY.to_owned());
        }
        found.extend(gate(series));
        let precise = series.summary.relative_half_width().is_some_and(|width| width <= PRECISE);
        if (series.conditions.stopped == Stopped::Precise) && !precise {
            return Err(
                "it says that sampling stopped at a narrow interval, which its samples do not have"
                    .into(),
            );
        }
    }
    for status in &found {
        if !measurement.statuses.iter().any(|told| told.kind == status.kind) {
            return Err(format!("its samples are {}, which it does not say", status.kind));
        }
    }
    for told in &measurement.statuses {
        if told.kind.is_derived() && !found.iter().any(|status| status.kind == told.kind) {
            return Err(format!("it says {}, which does not follow from its samples", told.kind));
        }
    }
    if measurement.agreement.as_ref().is_some_and(|agreement| !agreement.worst.agrees()) {
        return Err("its outputs disagree with the reference".to_owned());
    }
    check_shares(results, measurement)
}

/// A share of a ceiling follows from the work, the median and the ceiling's own samples.
fn check_shares(results: &Results, measurement: &Measurement) -> Result<(), String> {
    for told in &measurement.ceiling_shares {
        let ceiling = results.ceilings.iter().find(|ceiling| ceiling.name == told.ceiling);
        let (Some(ceiling), Some(work), Some(series)) =
            (ceiling, &measurement.work, &measurement.latency)
        else {
            continue;
        };
        let share = ceiling.share(work, series.summary.median_ns).share;
        if !close(share, told.share, 0.0) {
            let found = format!("{:.4} of `{}`, and says {:.4}", share, told.ceiling, told.share);
            return Err(format!("it reaches {found}"));
        }
    }
    Ok(())
}

/// Items of a call are a product of sizes of the workload, the same for everybody who computes it.
pub(super) fn check_items(results: &Results) -> Result<(), Inconsistency> {
    let mut known: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for record in &results.records {
        let work = record.outcome.measurement().and_then(|measurement| measurement.work.as_ref());
        let Some(items) = work.and_then(|work| work.items.as_ref()) else { continue };
        let workload = &record.case.workload;
        let sizes: Vec<u64> = workload.dimensions.values().copied().collect();
        let expected = *known.entry((workload.to_string(), &items.name)).or_insert(items.per_call);
        if items.per_call != expected || !(sizes.is_empty() || is_product(&sizes, items.per_call)) {
            let why = format!(
                "{} {} in a call do not follow from `{workload}`",
                items.per_call, items.name
            );
            return Err(Inconsistency::Contradiction { case: record.case.id(), why });
        }
    }
    Ok(())
}

/// Whether `product` is the product of some of `sizes`. The product of none is 1.
fn is_product(sizes: &[u64], product: u64) -> bool {
    match sizes {
        [] => product == 1,
        [first, rest @ ..] => {
            is_product(rest, product)
                || (*first > 0
                    && product.is_multiple_of(*first)
                    && is_product(rest, product / first))
        }
    }
}
