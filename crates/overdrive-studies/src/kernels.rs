//! Single kernels against their bounds: products against the best library, fused against unfused,
//! memory-bound kernels against a copy of the same bytes, a whole transformer against its products
//! alone.
//!
//! Each case is a small graph through the whole stack, in one session with what it is held against.

mod accelerator;
pub(crate) mod graphs;
mod peers;

use crate::{Context, Device, Entry, Study, Workload, measure};
use graphs::{
    attention, chain, copy, layer_norm, linear, linear_gelu, matmul, softmax, transformer_matmuls,
};
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_ir::{DType, Graph, GraphError, Mode, WithoutKernels};
use std::collections::BTreeMap;

/// The study.
pub(crate) struct Kernels;

const NAME: &str = "kernels";

type Case = fn(&Context<'_>, &mut Results) -> Result<(), GraphError>;

impl Study for Kernels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "matmul, linear+GELU, softmax, norms, attention, an elementwise chain: each against its \
         bound"
    }

    fn quick_seconds(&self) -> u64 {
        75
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let host: [(&str, Case); 6] = [
            ("matmul", matmuls),
            ("transformer over its products", transformer),
            ("linear+gelu", fused_linear),
            ("elementwise chain", elementwise),
            ("softmax and layer_norm", rows),
            ("attention", attentions),
        ];
        let cases =
            if context.device().is_accelerator() { &accelerator::CASES[..] } else { &host[..] };
        for &(name, case) in cases {
            if let Some(reason) = context.over() {
                results.notes.push(Note {
                    study: NAME.to_owned(),
                    text: format!("{name}: skipped, {reason}"),
                });
                continue;
            }
            context.progress.workload(name);
            if let Err(error) = case(context, results) {
                results
                    .notes
                    .push(Note { study: NAME.to_owned(), text: format!("{name}: {error}") });
            }
        }
    }
}

/// Median time of `of` over that of `over`, as an exact quantity of `of`: both from one session.
fn relate(records: &mut [Record], of: usize, over: usize, quantity: &str) {
    let median =
        |record: &Record| Some(record.outcome.measurement()?.latency.as_ref()?.summary.median_ns);
    // A session that was not asked for has no records.
    let [Some(a), Some(b)] = [of, over].map(|i| records.get(i).and_then(median)) else { return };
    if let Some(measurement) = records[of].outcome.measurement_mut() {
        measurement.quantities.insert(quantity.to_owned(), a / b);
    }
}

fn matmuls(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let sizes = context.sizes(&[128usize, 256, 512, 1024], &[128, 256, 512, 1024, 2048]);
    let both = [context.single(), context.device()];
    let devices = if context.device().threads > 1 { &both[..] } else { &both[1..] };
    for &n in sizes {
        let dims = [("m", n), ("n", n), ("k", n)];
        let workload = Workload::new("matmul", dims, matmul(DType::F32, [n; 3])?);
        let half = Workload::new("matmul", dims, matmul(DType::BF16, [n; 3])?);
        for device in devices {
            let mut entries = vec![Entry::plain(&workload, device, Mode::Compile)];
            if device.backend.description().contraction_dtypes.contains(&DType::BF16) {
                let entry = Entry::plain(&half, device, Mode::Compile);
                entries.push(Entry { dtype: DType::BF16, ..entry });
            }
            let mut records = peers::measure_with_peers(context, &workload, &entries, [n; 3]);
            let (first_peer, fastest) = (entries.len(), peers::fastest(&records, entries.len()));
            if let Some(fastest) = fastest {
                relate(&mut records, 0, fastest, "time_over_best_library");
            }
            if first_peer > 1 {
                relate(&mut records, 1, 0, "time_over_f32");
            }
            context.add(results, records);
        }
    }
    Ok(())
}

fn fused_linear(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let device = context.device();
    for [m, k, n] in [[1024, 512, 2048], [1024, 1024, 4096], [1024, 4096, 1024]] {
        let dims = [("m", m), ("n", n), ("k", k)];
        let alone = Workload::new("linear", dims, linear(DType::F32, [m, k, n])?);
        let workload = Workload::new("linear+gelu", dims, linear_gelu(DType::F32, [m, k, n])?);
        let variant = |mode, variant| Entry {
            variant: Some(variant),
            ..Entry::plain(&workload, device, mode)
        };
        let entries = [
            variant(Mode::Jit, "unfused"),
            variant(Mode::Compile, "fused"),
            Entry { variant: Some("product alone"), ..Entry::plain(&alone, device, Mode::Compile) },
        ];
        let mut records = measure(context, NAME, &entries, &mut []);
        relate(&mut records, 0, 2, "time_over_product_alone");
        relate(&mut records, 1, 2, "time_over_product_alone");
        context.add(results, records);
    }
    Ok(())
}

fn elementwise(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    const ELEMENTS: usize = 16 << 20;
    let dims = [("n", ELEMENTS)];
    let workload = Workload::new("chain of 8", dims, chain(&[ELEMENTS])?);
    let stream = Workload::new("copy", dims, copy(DType::F32, &[ELEMENTS])?);
    let device = context.device();
    let entries = [
        Entry::plain(&workload, device, Mode::Jit),
        Entry::plain(&workload, device, Mode::Compile),
        Entry::plain(&stream, device, Mode::Compile),
    ];
    let mut records = measure(context, NAME, &entries, &mut []);
    relate(&mut records, 0, 2, "time_over_copy");
    relate(&mut records, 1, 2, "time_over_copy");
    context.add(results, records);
    Ok(())
}

/// Rows of 8,192 whose bytes, in and out, are four times the last cache level (a quarter of it with
/// --quick), as far as memory allows: inputs of two seeds, one copy of them in use, and the outputs
/// of both.
fn rows(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    const COLUMNS: usize = 8192;
    let last_level =
        results.environment.cpu.caches.iter().map(|c| c.bytes).max().unwrap_or(32 << 20);
    let wanted = context.quick_or((last_level / 4).clamp(64 << 20, 256 << 20), 4 * last_level);
    let footprint = wanted.min(context.device().backend.description().memory_bytes / 5) as usize;
    let rows = (footprint / (2 * 4 * COLUMNS)).next_multiple_of(64);
    if (footprint as u64) < 4 * last_level {
        let text = format!(
            "softmax and layer_norm on {} MiB, less than four times the last cache level of {} MiB",
            footprint >> 20,
            last_level >> 20
        );
        results.notes.push(Note { study: NAME.to_owned(), text });
    }
    let builders: [(&str, Build); 2] = [("softmax", softmax), ("layer_norm", layer_norm)];
    for (name, build) in builders {
        let records =
            beside_copy(context, (name, build), (DType::F32, [rows, COLUMNS]), Mode::Compile)?;
        context.add(results, records);
    }
    Ok(())
}

type Build = fn(DType, [usize; 2]) -> Result<Graph, GraphError>;

/// A kernel on rows and a copy of the same bytes, in one session; what takes one pass over its rows
/// is compared on some of them.
fn beside_copy(
    context: &Context<'_>,
    (name, build): (&str, Build),
    (dtype, shape): (DType, [usize; 2]),
    mode: Mode,
) -> Result<Vec<Record>, GraphError> {
    let dims = [("rows", shape[0]), ("columns", shape[1])];
    let some = |name: &str, build: Build| {
        let graph = build(dtype, shape)?;
        let row_inputs = (shape[0], graph.inputs().len());
        // What is drawn below the vocabulary are targets: columns.
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

fn attentions(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let device = context.device();
    for t in context.sizes(&[512usize, 2048], &[512, 2048, 8192]) {
        let shape = [1, 8, *t, 64];
        let dims = [("B", 1), ("H", 8), ("T", *t), ("D", 64)];
        let workload = Workload::new("causal attention", dims, attention(DType::F32, shape)?);
        let mut entries = vec![Entry {
            variant: Some("tiled"),
            ..Entry::plain(&workload, device, Mode::Compile)
        }];
        // The scores of the expanded form take H T^2 numbers, several times over.
        if *t <= 2048 {
            let graph = expanded(&workload.graph, device)?;
            let entry = Entry::plain(&workload, device, Mode::Compile);
            entries.insert(0, Entry { graph, variant: Some("expanded"), ..entry });
        }
        context.add(results, measure(context, NAME, &entries, &mut []));
    }
    Ok(())
}

/// The graph with every composite in primitives.
fn expanded(graph: &Graph, device: &Device<'_>) -> Result<Graph, GraphError> {
    let bare = WithoutKernels(device.backend.description().clone());
    overdrive_passes::legalize(graph, &bare, &mut Vec::new())
}

fn transformer(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
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
