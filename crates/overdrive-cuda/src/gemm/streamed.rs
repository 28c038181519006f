//! Our kernel for products of few rows that stream their weights (a decoder's step). This file says
//! which products it takes, and launches it. `kernels/streamed.cu` says how it works.
//!
//! Invariant: two blocks take half of a multiprocessor at most, so that the next layer's weights
//! are on their way while this one finishes. Rows of x that are longer take all of it.

use super::base::Base;
use super::bunch::FewRows;
use super::epilogue::{self, is_printable};
use super::led;
use super::problem::{alignment, strides, sums};
use super::skinny::{self, WeightWrites};
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::loops::Lead;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::DType;
use overdrive_ir::plan::{GemmCall, SlotId};
use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most rows: each takes as many instructions as loading the weights does.
const ROWS: usize = 4;
/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// Bytes of a lane's copy.
const UNIT_BYTES: usize = 16;
/// Most such copies of a lane for a piece.
const MOST_EACH: usize = 4;
/// Most pieces of a warp under way.
const MOST_STAGES: usize = 4;
/// Blocks of this kernel on a multiprocessor, of one launch.
const BLOCKS: usize = 2;
/// Shared memory of a multiprocessor for blocks, less what each block takes beside its own.
const SHARED_BYTES: usize = 224 << 10;

/// How a launch is cut.
#[derive(Copy, Clone, Debug)]
struct Cut {
    /// Copies of a lane for a piece.
    each: usize,
    /// Pieces of a warp under way.
    stages: usize,
    /// Launches whose blocks a multiprocessor takes at a time.
    launches: usize,
    /// Bytes of x, in whole lines.
    row_bytes: usize,
}

impl Cut {
    /// `None` if x leaves no room for weights.
    fn new(call: &GemmCall) -> Option<Self> {
        let row = call.k * call.rhs.dtype.bits() / 8;
        let each = row.div_ceil(32 * UNIT_BYTES).clamp(1, MOST_EACH);
        let row_bytes = (call.m * row).next_multiple_of(128);
        [2, 1].into_iter().find_map(|launches| {
            let room = (SHARED_BYTES / (launches * BLOCKS)).checked_sub(row_bytes)?;
            let stages = (room / (each * UNIT_BYTES * THREADS)).min(MOST_STAGES);
            (stages >= 2).then_some(Self { each, stages, launches, row_bytes })
        })
    }

    fn shared_bytes(&self) -> usize {
        self.row_bytes + self.stages * self.each * UNIT_BYTES * THREADS
    }
}

/// Whether the kernel takes a product.
pub(super) fn applies(call: &GemmCall) -> bool {
    let (left, right) = (&call.lhs, &call.rhs);
    let ([lhs_row, lhs_column], [rhs_row, rhs_column]) = (strides(left), strides(right));
    let typed = matches!(right.dtype, DType::F32 | DType::F16 | DType::BF16)
        && left.dtype == right.dtype
        && call.accumulate == DType::F32;
    let single = call.batch.iter().product::<usize>() == 1;
    let is_aligned =
        |offset, stride| alignment(right.dtype, offset, &[stride]) >= UNIT_BYTES as u64;
    let lhs_row = if call.m == 1 { 0 } else { lhs_row };
    typed
        && single
        && (1..=ROWS).contains(&call.m)
        && call.n <= i32::MAX as usize / 2
        && (lhs_column, rhs_row) == (1, 1)
        && is_aligned(left.offset, lhs_row)
        && is_aligned(right.offset, rhs_column)
        && (call.k * right.dtype.bits() / 8).is_multiple_of(UNIT_BYTES)
        && call.k > 0
        && is_printable(&call.epilogue.0)
        && Cut::new(call).is_some()
}

/// The source of the kernel for products that it takes. `asks` are the addresses of the loop that
/// are prefetched early, with their bytes.
pub(super) fn source(
    work: FewRows<'_>,
    weights: WeightWrites,
    asks: &[(usize, usize)],
) -> Option<KernelSource> {
    let call = &work.tiles[0][0];
    let cut = Cut::new(call).filter(|_| work.calls().all(applies))?;
    let mut defines = epilogue::defines(call, sums(call));
    defines.retain(|(name, _)| *name != "N");
    defines.extend([
        ("THREADS", THREADS.to_string()),
        ("BESIDE", (BLOCKS * cut.launches).to_string()),
        ("STAGES", cut.stages.to_string()),
        ("EACH", cut.each.to_string()),
        ("ROW_BYTES", cut.row_bytes.to_string()),
        ("GROUPS", groups(work).to_string()),
        ("LEAD", u8::from(work.lead.is_some()).to_string()),
        ("SETTLED", u8::from(weights == WeightWrites::Settled).to_string()),
    ]);
    let mut text = skinny::print_parts(work);
    let count = work.calls().count();
    let _ = write!(text, "struct Weights {{\n    const RHS* at[{count}];\n}};\n");
    text += &led::print(work.lead, asks);
    text += &ways(work);
    text += include_str!("kernels/streamed.cu");
    Some(epilogue::source("gemm_streamed", &defines, &text))
}

/// Outputs, those that a warp computes together counted once.
fn groups(work: FewRows<'_>) -> usize {
    work.tiles.iter().map(|calls| calls[0].n).sum()
}

/// The functions that find the products of an output.
fn ways(work: FewRows<'_>) -> String {
    let [mut parts, mut row, mut store, mut ask] = [const { String::new() }; 4];
    let (mut id, mut first) = (0, 0);
    for calls in work.tiles {
        let last = first + calls[0].n;
        let _ = write!(parts, "if (group < {last}) return {}; ", calls.len());
        for (place, call) in calls.iter().enumerate() {
            let id = id + place;
            let of = format!("if (group < {last} && part == {place}) return ");
            let stride = call.rhs.col_stride;
            let _ = write!(row, "{of}weights.at[{id}] + (group - {first}) * {stride}ll; ");
            let given = format!("{of}part{id}::Part::");
            let _ = write!(store, "{given}store(given.of{id}, m, group - {first}, sum); ");
            let _ = write!(ask, "{given}ask(given.of{id}, m, group - {first}); ");
        }
        (id, first) = (id + calls.len(), last);
    }
    format!(
        "__device__ __forceinline__ int parts_of(int group) {{ {parts}return 1; }}\n\
         __device__ __forceinline__ const RHS* row_of(const Weights& weights, int group, int \
         part) {{ {row}return nullptr; }}\n\
         __device__ __forceinline__ void store_of(const Given& given, int group, int part, int m, \
         SUM sum) {{ {store}}}\n\
         __device__ __forceinline__ void ask_of(const Given& given, int group, int part, int m) \
         {{ {ask}}}\n"
    )
}

struct StreamedGemm {
    entry: Entry,
    x: Base,
    weights: Vec<Base>,
    /// Buffers of the epilogues, one product's after the other's, then those of the loop.
    slots: Vec<SlotId>,
}

/// Compiles the kernel for a product alone; `None` where it does not apply.
pub(super) fn compile(
    site: &Site<'_>,
    call: &GemmCall,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let tiles = [vec![call.clone()]];
    compile_parts(site, FewRows { tiles: &tiles, lead: None })
}

/// Compiles the kernel for several; `None` where it does not apply.
pub(super) fn compile_parts(
    site: &Site<'_>,
    work: FewRows<'_>,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let call = &work.tiles[0][0];
    let settled = work.calls().all(|call| site.is_settled(call.rhs.slot));
    let writes = if settled { WeightWrites::Settled } else { WeightWrites::Moving };
    let asks = led::asks(site, work.lead);
    let Some(source) = source(work, writes, &asks) else { return Ok(None) };
    let cut = Cut::new(call).expect("the source was printed by it");
    let most = BLOCKS * site.device.properties().multiprocessors as usize;
    let config = LaunchConfig {
        grid_dim: (groups(work).div_ceil(THREADS / 32).min(most) as u32, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: cut.shared_bytes() as u32,
    };
    let epilogues = work.calls().flat_map(|call| epilogue::print(call).slots);
    let slots = epilogues.chain(work.lead.map_or(vec![], Lead::slots)).collect();
    Ok(Some(Box::new(StreamedGemm {
        entry: Entry::new(site.device, (&source, "gemm_streamed"), config)?,
        x: Base::of(&call.lhs),
        weights: work.calls().map(|call| Base::of(&call.rhs)).collect(),
        slots,
    })))
}

impl Launch for StreamedGemm {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut x = self.x.address(addresses);
        let mut weights: Vec<u64> =
            self.weights.iter().map(|base| base.address(addresses)).collect();
        let mut slots: Vec<u64> = self.slots.iter().map(|&slot| addresses.of(slot)).collect();
        // Without a loop, its array in `Given` still has an element.
        slots.push(0);
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut x).cast(), weights.as_mut_ptr().cast(), slots.as_mut_ptr().cast()];
        // SAFETY: the kernel takes the address of x, one for each product, and those of `Given`.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
