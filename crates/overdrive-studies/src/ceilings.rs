//! Ceilings of this machine, measured at the start of a run through the same back end as everything else: a copy
//! for bandwidth, square products for compute.

use crate::kernels::graphs::{copy, matmul};
use crate::session::{prepare, ready};
use crate::{Context, Device, Entry, Workload};
use overdrive_bench::ceilings::{Ceiling, CeilingKind, Probe};
use overdrive_bench::outcome::Failure;
use overdrive_ir::{DType, Mode};

/// How much is copied and multiplied.
struct Extent {
    /// f32 elements of the copy.
    copied: usize,
    /// Edge of the square products.
    edge: usize,
}

impl Extent {
    /// 64 MiB in and 64 MiB out, and a millisecond or more of arithmetic; on an accelerator what lasts about as long.
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
    for device in context.devices {
        let mut kinds = vec![None, Some(DType::F32), Some(DType::BF16)];
        kinds.retain(|kind| kind.is_none_or(|d| device.backend.caps().contraction_dtypes.contains(&d)));
        found.extend(kinds.into_iter().filter_map(|kind| ceiling(context, device, kind).ok()));
    }
    found
}

/// Bandwidth, or products in a type.
fn ceiling(context: &Context<'_>, device: &Device<'_>, kind: Option<DType>) -> Result<Ceiling, Failure> {
    let failed = |e: overdrive_ir::GraphError| Failure::failed(e.to_string());
    let threads = device.threads;
    let Extent { copied, edge } = Extent::of(device);
    let (graph, probe) = match kind {
        None => {
            let bytes = 2 * 4 * copied as u64;
            let name = format!("copy {} MiB t{threads}", bytes >> 20);
            let kind = CeilingKind::Bandwidth;
            (
                copy(DType::F32, &[copied]).map_err(failed)?,
                Probe { name, kind, amount_per_call: bytes, threads },
            )
        }
        Some(dtype) => {
            let flops = 2 * (edge as u64).pow(3);
            let name = format!("matmul {dtype} {edge} t{threads}");
            let kind = CeilingKind::Compute;
            (matmul(dtype, [edge; 3]).map_err(failed)?, Probe { name, kind, amount_per_call: flops, threads })
        }
    };
    let workload = Workload::new("ceiling", [], graph);
    let entry = Entry { dtype: kind.unwrap_or(DType::F32), ..Entry::plain(&workload, device, Mode::Compile) };
    let oracle = workload.oracle(context);
    let mut compiled = ready(context, &entry)?;
    let mut calls = prepare(context, &entry, &oracle, &mut compiled)?;
    Ceiling::measure(&context.runner(), probe, &mut [(device.backend.name(), &mut calls)])
}
