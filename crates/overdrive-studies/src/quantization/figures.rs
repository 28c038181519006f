//! The quantities of a record that say what a mode costs: bytes in the file by what they are,
//! quality, and what was lost.

use super::estimate::Estimate;
use super::metric::{Metric, Scores};
use super::{Agreement, Footprint};
use std::collections::BTreeMap;

/// Quantities by name, as records have them.
pub(super) type Quantities = BTreeMap<String, f64>;

/// An estimate under a name, with its ends and the number of samples behind it.
pub(super) fn insert(quantities: &mut Quantities, name: &str, estimate: Estimate) {
    quantities.insert(name.to_owned(), estimate.value);
    quantities.insert(format!("{name}.low"), estimate.low);
    quantities.insert(format!("{name}.high"), estimate.high);
}

/// Bytes of the file of states: what it holds, and what it takes to say so.
pub(super) fn bytes(quantities: &mut Quantities, file_bytes: u64, footprint: &Footprint) {
    let mut part = |name: &str, bytes: u64| {
        // A file without codes has no part of that name.
        if bytes > 0 {
            quantities.insert(name.to_owned(), bytes as f64);
        }
    };
    part("file_bytes", file_bytes);
    part("file_bytes.codes", footprint.codes);
    part("file_bytes.scales", footprint.scales);
    part("file_bytes.unquantized", footprint.unquantized);
    part("file_bytes.metadata", file_bytes - footprint.total());
    if footprint.replaced > 0 {
        quantities.insert("layer_share".to_owned(), footprint.share_of_layers());
    }
}

/// The measure of a model, and its change against the float one where it is another: points, or
/// percent of a perplexity.
pub(super) fn quality(
    quantities: &mut Quantities,
    metric: Metric,
    found: &[Scores],
    float: Option<&[Scores]>,
) {
    let name = metric.quantity();
    insert(quantities, name, metric.of(found));
    let samples: usize = found.iter().map(|scores| scores.samples.len()).sum();
    quantities.insert(format!("{name}.n"), samples as f64);
    if let Some(float) = float {
        insert(quantities, &format!("{name}.change"), change(metric, found, float));
    }
}

/// The change of the measure against `float`: percent of a perplexity, points of an accuracy.
pub(super) fn change(metric: Metric, found: &[Scores], float: &[Scores]) -> Estimate {
    let lost = metric.loss(float, found);
    match metric {
        Metric::Perplexity | Metric::SquaredError => lost,
        Metric::Top1 | Metric::Cosine => {
            Estimate { value: 0.0 - lost.value, low: 0.0 - lost.high, high: 0.0 - lost.low }
        }
    }
}

/// How near the outputs are to the float model's.
pub(super) fn likeness(quantities: &mut Quantities, agreement: &Agreement) {
    insert(quantities, "cosine", agreement.cosine);
    quantities.insert("cosine.n".to_owned(), agreement.samples as f64);
    insert(quantities, "relative_error", agreement.relative_error);
}
