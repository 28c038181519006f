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

/// The work of a ceiling.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CeilingWork {
    /// A copy of f32.
    Copy,
    /// Square products of a type.
    Products(DType, Precision),
}

impl CeilingWork {
    /// Products of f32.
    pub const F32: Self = Self::Products(DType::F32, Precision::Exact);

    /// All of it, in the order of a report.
    pub const ALL: [Self; 7] = [
        Self::Copy,
        Self::F32,
        Self::Products(DType::BF16, Precision::Exact),
        Self::Products(DType::F32, Precision::Tf32),
        Self::Products(DType::F16, Precision::Exact),
        Self::Products(DType::F8E4M3, Precision::Exact),
        Self::Products(DType::I8, Precision::Exact),
    ];

    /// Whether a device is measured on it. Processors are held against f32 and bf16 alone.
    fn is_of(self, device: &Device<'_>) -> bool {
        let Self::Products(dtype, precision) = self else { return true };
        let everywhere = precision == Precision::Exact && matches!(dtype, DType::F32 | DType::BF16);
        (everywhere || device.is_accelerator())
            && device.backend.description().contraction_dtypes.contains(&dtype)
    }
}

/// The ceilings of every device of the context on this work; one that cannot be measured is left
/// out.
pub fn ceilings(context: &Context<'_>, work: &[CeilingWork]) -> Vec<Ceiling> {
    let context = &context.with_one_seed();
    let mut found = Vec::new();
    for device in context.parties.devices {
        let its = work.iter().filter(|work| work.is_of(device));
        found.extend(its.filter_map(|work| ceiling(context, device, *work).ok()));
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

/// The ceiling of a device on this work.
fn ceiling(
    context: &Context<'_>,
    device: &Device<'_>,
    work: CeilingWork,
) -> Result<Ceiling, Failure> {
    let failed = |e: overdrive_ir::GraphError| Failure::failed(e.to_string());
    let threads = device.threads;
    let CeilingSizes { copied, edge } = CeilingSizes::of(device);
    // As a function of the number of rows.
    let graph = |rows| match work {
        CeilingWork::Copy => copy(DType::F32, &[rows, edge]),
        CeilingWork::Products(dtype, precision) => product((dtype, precision), [rows, edge]),
    };
    let (rows, probe) = match work {
        CeilingWork::Copy => {
            let bytes = 2 * 4 * copied as u64;
            let name = format!("copy {} MiB t{threads}", bytes >> 20);
            let kind = CeilingKind::Bandwidth;
            (copied / edge, Probe { name, kind, amount_per_call: bytes, threads })
        }
        CeilingWork::Products(dtype, precision) => {
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
    let judged_as = match work {
        CeilingWork::Products(DType::F32, Precision::Tf32) => DType::F16,
        CeilingWork::Products(dtype, _) => dtype,
        CeilingWork::Copy => DType::F32,
    };
    let entry = Entry { dtype: judged_as, ..Entry::plain(&workload, device, Mode::Compile) };
    let oracle = workload.oracle(context);
    let mut compiled = ready(context, &entry)?;
    let mut calls = prepare(context, &entry, &oracle, &mut compiled)?;
    Ceiling::measure(&context.sampling.runner(), probe, &mut [(device.backend.name(), &mut calls)])
}
