//! Code that the cases of a processor and of an accelerator share.

use super::graphs::{copy, transformer_matmuls};
use crate::{Context, Entry, Workload, measure, relate};
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_ir::{DType, Graph, GraphError, Mode};
use std::collections::BTreeMap;

/// The name of the study.
pub(super) const NAME: &str = "kernels";

/// Measures a case and leaves its records.
pub(super) type MeasureCase = fn(&Context<'_>, &mut Results) -> Result<(), GraphError>;

/// The graph of a kernel on rows.
pub(super) type BuildKernel = fn(DType, [usize; 2]) -> Result<Graph, GraphError>;

/// Measures a kernel on rows and a copy of the same bytes in one session. A kernel that makes one
/// pass over its rows is checked on some of them only.
pub(super) fn beside_copy(
    context: &Context<'_>,
    (name, build): (&str, BuildKernel),
    (dtype, shape): (DType, [usize; 2]),
    mode: Mode,
) -> Result<Vec<Record>, GraphError> {
    let dims = [("rows", shape[0]), ("columns", shape[1])];
    let some = |name: &str, build: BuildKernel| {
        let graph = build(dtype, shape)?;
        let row_inputs = (shape[0], graph.inputs().len());
        // Inputs that are drawn below the vocabulary are targets: columns.
        let whole = Workload { vocabulary: shape[1], ..Workload::new(name, dims, graph) };
        whole.with_sampled_rows(row_inputs, |n| build(dtype, [n, shape[1]]))
    };
    let workload = some(name, build)?;
    let stream = some(&format!("copy beside {name}"), |dtype, shape| copy(dtype, &shape))?;
    let entries =
        [&workload, &stream].map(|w| Entry { dtype, ..Entry::plain(w, context.device(), mode) });
    // One seed: each is drawn anew, and the rows are many.
    let mut records = measure(&context.with_one_seed(), NAME, &entries, &mut []);
    share_of_bandwidth(&mut records);
    Ok(records)
}

/// Bytes per second of the first record over those of the second, as an exact quantity of the
/// first.
fn share_of_bandwidth(records: &mut [Record]) {
    let rate = |record: &Record| {
        let measurement = record.outcome.measurement()?;
        let median_ns = measurement.latency.as_ref()?.summary.median_ns;
        Some(measurement.work.as_ref()?.bytes as f64 / median_ns)
    };
    let [Some(of), Some(over)] = [0, 1].map(|i| records.get(i).and_then(rate)) else { return };
    if let Some(measurement) = records[0].outcome.measurement_mut() {
        measurement.quantities.insert("bandwidth_over_copy".to_owned(), of / over);
    }
}

/// A whole transformer beside its products alone.
pub(super) fn transformer(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let model = overdrive_models::find("transformer").expect("a built-in model");
    let workload = Workload::of_model(model, &BTreeMap::new())?;
    let alone = Workload::new(
        "transformer, products alone",
        model.dimensions.to_vec(),
        transformer_matmuls()?,
    );
    let device = context.device();
    let modes = context.quick_or(&[Mode::Compile][..], &[Mode::Eager, Mode::Compile][..]);
    let workloads = [&workload, &alone];
    let entries: Vec<Entry<'_>> = workloads
        .iter()
        .flat_map(|w| modes.iter().map(|&mode| Entry::plain(w, device, mode)))
        .collect();
    let mut records = measure(context, NAME, &entries, &mut []);
    for of in 0..modes.len() {
        relate(&mut records, of, of + modes.len(), "time_over_products_alone");
    }
    context.add(results, records);
    Ok(())
}
