//! The cases at the sizes of a processor.

use super::case::{BuildKernel, MeasureCase, NAME, beside_copy, transformer};
use super::graphs::{attention, chain, copy, layer_norm, linear, linear_gelu, matmul, softmax};
use super::peers;
use crate::{Context, Device, Entry, Workload, measure, relate};
use overdrive_bench::results::{Note, Results};
use overdrive_ir::{DType, Graph, GraphError, Mode, WithoutKernels};

/// In the order in which they run.
pub(super) const CASES: [(&str, MeasureCase); 6] = [
    ("matmul", matmuls),
    ("transformer over its products", transformer),
    ("linear+gelu", fused_linear),
    ("elementwise chain", elementwise),
    ("softmax and layer_norm", rows),
    ("attention", attentions),
];

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

/// Rows of 8,192 elements. Their bytes, in and out, are four times the last cache level (a quarter
/// of it with --quick), as far as memory allows. Memory holds inputs of two seeds, one copy of them
/// in use, and the outputs of both.
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
    let builders: [(&str, BuildKernel); 2] = [("softmax", softmax), ("layer_norm", layer_norm)];
    for (name, build) in builders {
        let records =
            beside_copy(context, (name, build), (DType::F32, [rows, COLUMNS]), Mode::Compile)?;
        context.add(results, records);
    }
    Ok(())
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
