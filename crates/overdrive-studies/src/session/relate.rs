//! Times of one session as multiples of each other.

use overdrive_bench::record::Record;

/// Median time of `of` over that of `over`, as an exact quantity of `of`: both from one session.
pub(crate) fn relate(records: &mut [Record], of: usize, over: usize, quantity: &str) {
    let median =
        |record: &Record| Some(record.outcome.measurement()?.latency.as_ref()?.summary.median_ns);
    // A session that was not asked for has no records.
    let [Some(a), Some(b)] = [of, over].map(|i| records.get(i).and_then(median)) else { return };
    if let Some(measurement) = records[of].outcome.measurement_mut() {
        measurement.quantities.insert(quantity.to_owned(), a / b);
    }
}
