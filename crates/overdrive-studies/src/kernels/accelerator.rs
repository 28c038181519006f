//! The kernel cases at the sizes and in the formats of an accelerator.
//!
//! Sizes are those for which other stacks publish figures. References of what is large are computed
//! on sampled rows.

use super::case::{BuildKernel, MeasureCase, NAME, beside_copy, transformer};
use super::graphs::{
    attention, chain, cross_entropy, layer_norm, linear, linear_gelu, matmul, rms_norm, softmax,
};
use crate::{Context, Entry, Workload, measure, relate};
use overdrive_bench::results::Results;
use overdrive_ir::{DType, GraphError, Mode};

/// In the order in which they run.
pub(super) const CASES: [(&str, MeasureCase); 6] = [
    ("matmul", matmuls),
    ("linear+gelu", fused_linear),
    ("elementwise chain", elementwise),
    ("rows", rows),
    ("attention", attentions),
    ("transformer over its products", transformer),
];

fn matmuls(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let (device, once) = (context.device(), context.with_one_seed());
    for &n in context.sizes(&[4096usize], &[4096, 8192, 16384]) {
        let dims = [("m", n), ("n", n), ("k", n)];
        let of = |dtype| {
            Workload::new("matmul", dims, matmul(dtype, [n; 3])?)
                .with_sampled_rows((n, 1), |rows| matmul(dtype, [rows, n, n]))
        };
        let (single, half) = (of(DType::F32)?, of(DType::BF16)?);
        let mut entries =
            vec![Entry { dtype: DType::BF16, ..Entry::plain(&half, device, Mode::Compile) }];
        if n <= 4096 {
            entries.push(Entry::plain(&single, device, Mode::Compile));
        }
        context.add(results, measure(&once, NAME, &entries, &mut []));
    }
    Ok(())
}

/// Shapes `[m, k, n]` from launch-bound to compute-bound.
const LINEARS: [[usize; 3]; 4] =
    [[32, 512, 2048], [512, 512, 2048], [4096, 1024, 4096], [8192, 4096, 16384]];

fn fused_linear(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let (device, dtype) = (context.device(), DType::BF16);
    for &[m, k, n] in context.sizes(&LINEARS[..3], &LINEARS) {
        let dims = [("m", m), ("n", n), ("k", k)];
        let alone = Workload::new("linear", dims, linear(dtype, [m, k, n])?)
            .with_sampled_rows((m, 1), |rows| linear(dtype, [rows, k, n]))?;
        let workload = Workload::new("linear+gelu", dims, linear_gelu(dtype, [m, k, n])?)
            .with_sampled_rows((m, 1), |rows| linear_gelu(dtype, [rows, k, n]))?;
        let variant = |mode, variant| {
            let entry = Entry::plain(&workload, device, mode);
            Entry { dtype, variant: Some(variant), ..entry }
        };
        let product = Entry::plain(&alone, device, Mode::Compile);
        let entries = [
            variant(Mode::Jit, "unfused"),
            variant(Mode::Compile, "fused"),
            Entry { dtype, variant: Some("product alone"), ..product },
        ];
        let mut records = measure(context, NAME, &entries, &mut []);
        relate(&mut records, 0, 2, "time_over_product_alone");
        relate(&mut records, 1, 2, "time_over_product_alone");
        context.add(results, records);
    }
    Ok(())
}

fn elementwise(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    let shape = [context.quick_or(8 << 10, 32 << 10), 8 << 10];
    let build: BuildKernel = |_, shape| chain(&shape);
    let records = beside_copy(context, ("chain of 8", build), (DType::F32, shape), Mode::Compile)?;
    context.add(results, records);
    Ok(())
}

/// Widths of a hidden state up to those of a large vocabulary.
const WIDTHS: [usize; 8] =
    [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

fn rows(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    const ROWS: usize = 8192;
    let builders: [(&str, BuildKernel); 4] = [
        ("softmax", softmax),
        ("layer_norm", layer_norm),
        ("rms_norm", rms_norm),
        ("cross_entropy", cross_entropy),
    ];
    // Tracing one call, or capturing it, changes nothing about one kernel.
    let context = &context.with_peer_modes(&["eager", "compile"]);
    for &width in context.sizes(&WIDTHS[..2], &WIDTHS) {
        for case in builders {
            let records = beside_copy(context, case, (DType::BF16, [ROWS, width]), Mode::Compile)?;
            context.add(results, records);
        }
    }
    Ok(())
}

fn attentions(context: &Context<'_>, results: &mut Results) -> Result<(), GraphError> {
    for &t in context.sizes(&[512usize, 2048], &[512, 2048, 8192]) {
        let dims = [("B", 1), ("H", 8), ("T", t), ("D", 64)];
        let workload =
            Workload::new("causal attention", dims, attention(DType::BF16, [1, 8, t, 64])?);
        let entry = Entry::plain(&workload, context.device(), Mode::Compile);
        let entries = [Entry { dtype: DType::BF16, variant: Some("tiled"), ..entry }];
        context.add(results, measure(context, NAME, &entries, &mut []));
    }
    Ok(())
}
