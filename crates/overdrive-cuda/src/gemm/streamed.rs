//! Our kernel for products of few rows that stream their weights (a decoder's step). This file says
//! which products it takes, and launches it. `kernels/streamed.cu` says how it works.
//!
//! Invariant: a multiprocessor has one block, which takes half of Hopper's at most. So the next
//! launch's weights are on their way while this one finishes, and each of its blocks has a place.

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
/// Warps of a block.
const WARPS: usize = THREADS / 32;
/// Bytes of a lane's copy.
const UNIT_BYTES: usize = 16;
/// Most stages of a warp under way.
const MOST_STAGES: usize = 8;
/// Units of a lane in a stage, about: rows of a stage share the fold of their sums.
const UNITS_OF_STAGE: usize = 4;
/// Stages until warps share their sums.
const TURNS: usize = 8;
/// Most elements of x that a lane holds in registers.
const HELD: usize = 64;
/// Most shared memory of a block, which every architecture has. Hopper has room for two.
const SHARED_BYTES: usize = 99 << 10;
/// Launches whose blocks a multiprocessor takes at a time.
const LAUNCHES: usize = 2;

/// How a launch is cut.
#[derive(Copy, Clone, Debug)]
struct Cut {
    /// Warps that share a row of weights.
    slices: usize,
    /// Units of a lane in a row.
    each: usize,
    /// Outputs of a stage.
    outputs: usize,
    /// Rows of weights of an output.
    parts: usize,
    /// Stages of a warp under way.
    stages: usize,
    /// Bytes of x, in whole lines, and of the sums that warps share.
    bytes: [usize; 2],
}

impl Cut {
    /// That of outputs that have a row of weights in each of so many products; `None` if x leaves
    /// no room for weights.
    fn new(call: &GemmCall, parts: usize) -> Option<Self> {
        let row = call.k * call.rhs.dtype.bits() / 8;
        // Vectors of a warp in a row, and those of lanes that have something to do.
        let vectors = row.div_ceil(32 * UNIT_BYTES);
        let each = |slices: usize| vectors.div_ceil(slices);
        // As many warps as waste an eighth at most, which hold least of x each. One wastes nothing.
        let fits = |slices: &usize| 8 * (slices * each(*slices) - vectors) <= vectors;
        let slices = [WARPS, WARPS / 2, WARPS / 4, 1].into_iter().find(fits)?;
        let each = each(slices);
        let outputs = (UNITS_OF_STAGE / (each * parts)).max(1);
        let row_bytes = (call.m * row).next_multiple_of(128);
        let sums = (outputs * parts).next_power_of_two() * call.m.next_power_of_two();
        let folded = 2 * WARPS * TURNS * sums * 4;
        let stage = outputs * parts * each * UNIT_BYTES * THREADS;
        let stages = (SHARED_BYTES.checked_sub(row_bytes + folded)? / stage).min(MOST_STAGES);
        let bytes = [row_bytes, folded];
        let cut = Self { slices, each, outputs, parts, stages, bytes };
        (stages >= 2 && sums <= 32).then_some(cut)
    }

    /// That of the products of a launch.
    fn of(work: FewRows<'_>) -> Option<Self> {
        let parts = work.tiles.iter().map(Vec::len).max()?;
        Self::new(&work.tiles[0][0], parts)
    }

    fn shared_bytes(&self) -> usize {
        let stage = self.outputs * self.parts * self.each * UNIT_BYTES * THREADS;
        self.bytes.iter().sum::<usize>() + self.stages * stage
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
        && Cut::new(call, 1).is_some()
}

/// The source of the kernel for products that it takes. `asks` are the addresses of the loop that
/// are prefetched early, with their bytes.
pub(super) fn source(
    work: FewRows<'_>,
    weights: WeightWrites,
    asks: &[(usize, usize)],
) -> Option<KernelSource> {
    let call = &work.tiles[0][0];
    let cut = Cut::of(work).filter(|_| work.calls().all(applies))?;
    let unit = UNIT_BYTES * 8 / call.rhs.dtype.bits();
    let is_held = cut.each * unit * call.m <= HELD;
    let mut defines = epilogue::defines(call, sums(call));
    defines.retain(|(name, _)| *name != "N");
    defines.extend([
        ("THREADS", THREADS.to_string()),
        ("BESIDE", LAUNCHES.to_string()),
        ("SLICES", cut.slices.to_string()),
        ("EACH", cut.each.to_string()),
        ("OUTPUTS", cut.outputs.to_string()),
        ("PARTS", cut.parts.to_string()),
        ("STAGES", cut.stages.to_string()),
        ("TURNS", TURNS.to_string()),
        ("HELD", u8::from(is_held).to_string()),
        ("ROW_BYTES", cut.bytes[0].to_string()),
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
    let cut = Cut::of(work).expect("the source was printed by it");
    let most = site.device.properties().multiprocessors as usize;
    let config = LaunchConfig {
        grid_dim: (groups(work).min(most) as u32, 1, 1),
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
