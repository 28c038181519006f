//! Ceilings of this machine: a copy for bandwidth, square products for compute. They are measured
//! at the start of a run, through the same back end as everything else. Both are held against the
//! reference on some of their rows. A product that takes a fifth of a millisecond on an accelerator
//! takes the host seconds in f64.

use crate::kernels::graphs::copy;
use crate::session::{prepare, ready};
use crate::{Context, Device, Entry, Workload};
use overdrive_bench::ceilings::{Ceiling, CeilingKind, Probe};
use overdrive_bench::failure::Failure;
use overdrive_ir::{
    Builder, DType, DotGeneral, Graph, GraphError, Mode, Precision, Prim, TensorType,
};

/// How much is copied and multiplied.
struct CeilingSizes {
    /// f32 elements of the copy.
    copied: usize,
    /// Edge of the square products.
    edge: usize,
}

impl CeilingSizes {
    /// 64 MiB in and 64 MiB out, and a millisecond or more of arithmetic; on an accelerator what
    /// lasts about as long.
    fn of(device: &Device<'_>) -> Self {
        if device.is_accelerator() {
            Self { copied: 64 << 20, edge: 4096 }
        } else {
            Self { copied: 16 << 20, edge: 1024 }
        }
    }
}

/// Every ceiling of every device of the context; one that cannot be measured is left out.
pub fn ceilings(context: &Context<'_>) -> Vec<Ceiling> {
    let context = &context.with_one_seed();
    let mut found = Vec::new();
    for device in context.parties.devices {
        let mut kinds =
            vec![None, Some((DType::F32, Precision::Exact)), Some((DType::BF16, Precision::Exact))];
        if device.is_accelerator() {
            kinds.push(Some((DType::F32, Precision::Tf32)));
            kinds.extend(
                [DType::F16, DType::F8E4M3, DType::I8].map(|dtype| Some((dtype, Precision::Exact))),
            );
        }
        kinds.retain(|kind| {
            kind.is_none_or(|(d, _)| device.backend.description().contraction_dtypes.contains(&d))
        });
        found.extend(kinds.into_iter().filter_map(|kind| ceiling(context, device, kind).ok()));
    }
    found
}

/// A product of `rows` by a square, with sums of 32 bits. For 8-bit types both operands have k
/// contiguous, as matrix units want it.
fn product(
    (dtype, precision): (DType, Precision),
    [rows, edge]: [usize; 2],
) -> Result<Graph, GraphError> {
    let sums = if dtype.is_float() { DType::F32 } else { DType::I32 };
    let contract = vec![(1, if dtype.bits() == 8 { 1 } else { 0 })];
    let dot = DotGeneral { batch: vec![], contract, accumulate: sums, out: sums, precision };
    let b = Builder::new("matmul");
    let [x, y] = [("a", rows), ("b", edge)]
        .map(|(name, n)| b.input(name, TensorType::new(dtype, [n, edge])));
    b.output("c", b.op1(Prim::DotGeneral(dot), &[x, y]));
    b.finish()
}

/// Bandwidth, or products in a type.
fn ceiling(
    context: &Context<'_>,
    device: &Device<'_>,
    kind: Option<(DType, Precision)>,
) -> Result<Ceiling, Failure> {
    let failed = |e: overdrive_ir::GraphError| Failure::failed(e.to_string());
    let threads = device.threads;
    let CeilingSizes { copied, edge } = CeilingSizes::of(device);
    // As a function of the number of rows.
    let graph = |rows| match kind {
        None => copy(DType::F32, &[rows, edge]),
        Some(kind) => product(kind, [rows, edge]),
    };
    let (rows, probe) = match kind {
        None => {
            let bytes = 2 * 4 * copied as u64;
            let name = format!("copy {} MiB t{threads}", bytes >> 20);
            let kind = CeilingKind::Bandwidth;
            (copied / edge, Probe { name, kind, amount_per_call: bytes, threads })
        }
        Some((dtype, precision)) => {
            let flops = 2 * (edge as u64).pow(3);
            let rounded = if precision == Precision::Tf32 { "t" } else { "" };
            let name = format!("matmul {rounded}{dtype} {edge} t{threads}");
            (edge, Probe { name, kind: CeilingKind::Compute, amount_per_call: flops, threads })
        }
    };
    let whole = Workload::new("ceiling", [], graph(rows).map_err(failed)?);
    // Zeros and ones toggle few wires, and a chip at its power limit then clocks higher than real
    // data let it.
    let workload = Workload { vocabulary: 127, ..whole }
        .with_sampled_rows((rows, 1), graph)
        .map_err(failed)?;
    // tf32 keeps as many digits as f16.
    let judged_as = match kind {
        Some((DType::F32, Precision::Tf32)) => DType::F16,
        Some((dtype, _)) => dtype,
        None => DType::F32,
    };
    let entry = Entry { dtype: judged_as, ..Entry::plain(&workload, device, Mode::Compile) };
    let oracle = workload.oracle(context);
    let mut compiled = ready(context, &entry)?;
    let mut calls = prepare(context, &entry, &oracle, &mut compiled)?;
    Ceiling::measure(&context.sampling.runner(), probe, &mut [(device.backend.name(), &mut calls)])
}
