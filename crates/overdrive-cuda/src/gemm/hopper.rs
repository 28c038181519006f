//! Our kernel for Hopper: which products it takes, in which tiles, and its tensor maps.
//!
//! Everything about a product is compiled in; addresses are in the tensor maps, which the host
//! encodes when an address is new. Invariant: a tile never needs more shared memory than a block
//! may have.

mod tile;

pub(super) use crate::wgmma::print as wgmma;
use tile::ROOM;
pub(super) use tile::{HopperTile, Schedule, TILES};

use super::base::Base;
use super::epilogue::{self, is_printable};
use super::problem::{Dense, Major, SLOT_ALIGNMENT, dense, one_batch, split, strides, sums};
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::loops::Following;
use crate::tensor_map::{Boxes, Extent, Maps};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{Access, GemmCall, MatrixView, SlotId};
use overdrive_ir::{DType, Precision};
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes that TMA wants addresses and strides to be multiples of.
const TMA_ALIGNMENT: i64 = 16;

/// Bytes of one line of a tile: the widest swizzle.
const LINE: usize = 128;

/// Most results that TMA stores: as many maps for each product of a launch are its parameters.
const MOST_RESULTS: usize = 2;

/// A product as the kernel sees it.
pub(super) struct Fit {
    pub(super) lhs: Matrix,
    pub(super) rhs: Matrix,
}

/// Layout of a result that TMA can store.
pub(super) struct TmaStore {
    pub(super) base: Base,
    /// Elements from row to row.
    pub(super) row: i64,
    /// Elements from batch to batch.
    step: i64,
}

/// An operand.
pub(super) struct Matrix {
    pub(super) base: Base,
    /// Whether the contracted index is contiguous.
    pub(super) by_k: bool,
    leading: i64,
    /// Elements from batch to batch; 0 where all share it.
    batch: i64,
}

impl Fit {
    /// `None` where the kernel cannot take the call.
    pub(super) fn of(call: &GemmCall) -> Option<Self> {
        let half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        let (left, right) = (call.lhs.dtype, call.rhs.dtype);
        let whole_numbers = left == DType::I8 && right == left && call.accumulate == DType::I32;
        let typed =
            (half(left) && left == right) || (left.is_fp8() && right.is_fp8()) || whole_numbers;
        let whole = call.k > 0 && call.accumulate != DType::F64 && is_printable(&call.epilogue.0);
        // Results are staged in shared memory, at most four bytes each.
        let program = &call.epilogue.0;
        let narrow = program.stores.iter().all(|s| program.dtype(s.value).bits() <= 32);
        if !typed
            || !narrow
            || !whole
            || [call.m, call.n, call.k].iter().any(|&extent| extent > i32::MAX as usize / 2)
        {
            return None;
        }
        let ([lr, lc], [rr, rc]) = (strides(&call.lhs), strides(&call.rhs));
        // Rows of both operands are outer, columns contracted.
        let lhs = Matrix::of(&call.lhs, dense([call.m, call.k], [lr, lc])?, call)?;
        let rhs = Matrix::of(&call.rhs, dense([call.n, call.k], [rc, rr])?, call)?;
        if left.bits() == 8 && !(lhs.by_k && rhs.by_k) {
            return None;
        }
        Some(Self { lhs, rhs })
    }
}

impl Matrix {
    fn of(view: &MatrixView, dense: Dense, call: &GemmCall) -> Option<Self> {
        let (_, [batch]) = one_batch(&call.batch, [&view.batch_strides])?;
        let base = Base::of(view);
        let bytes = view.dtype.bits() as i64 / 8;
        let fits = [base.bytes, dense.leading * bytes, batch * bytes]
            .iter()
            .all(|b| b % TMA_ALIGNMENT == 0);
        (fits && batch >= 0).then_some(Self {
            base,
            by_k: dense.major == Major::Row,
            leading: dense.leading,
            batch,
        })
    }

    /// The tensor map's extents: along memory, then the other way, then batches.
    pub(super) fn extents(&self, rows: usize, call: &GemmCall) -> [Extent; 3] {
        let (inner, outer) = if self.by_k { (call.k, rows) } else { (rows, call.k) };
        let batches = if self.batch == 0 { 1 } else { call.batch.iter().product() };
        let step = if self.batch == 0 { self.leading } else { self.batch };
        [Extent::new(inner, 1), Extent::new(outer, self.leading), Extent::new(batches, step)]
    }

    /// The shape of a box: along memory, then the other way.
    pub(super) fn boxes(&self, rows: usize, dtype: DType) -> [usize; 2] {
        let line = LINE * 8 / dtype.bits();
        if self.by_k { [line, rows] } else { [line.min(rows), line] }
    }
}

/// The tiles that `together` such calls may be computed in, ordered by the time that they are
/// expected to take. There are none where the kernel cannot take the call.
pub(super) fn tiles(call: &GemmCall, together: usize, multiprocessors: u32) -> Vec<HopperTile> {
    tiles_of(call, [together, 1], multiprocessors)
}

/// The same for calls that are each the sum of `terms` such products.
pub(super) fn tiles_of(
    call: &GemmCall,
    [together, terms]: [usize; 2],
    multiprocessors: u32,
) -> Vec<HopperTile> {
    let Some(fit) = Fit::of(call) else { return vec![] };
    let (batch, shape) =
        (together * call.batch.iter().product::<usize>(), [call.m, call.n, terms * call.k]);
    let cycles = |tile: &HopperTile| tile.cycles(shape, batch, multiprocessors as usize);
    let applies = |tile: &HopperTile| tile.applies(promotes(call), [fit.lhs.by_k, fit.rhs.by_k]);
    let mut tiles: Vec<HopperTile> = TILES.into_iter().filter(applies).collect();
    tiles.sort_by(|a, b| cycles(a).total_cmp(&cycles(b)));
    tiles
}

/// Whether some tile takes a call, whatever the number of multiprocessors.
pub(super) fn takes(call: &GemmCall) -> bool {
    !tiles(call, 1, 1).is_empty()
}

/// Whether sums leave the tensor core's narrow accumulator of fp8 after each tile.
pub(super) fn promotes(call: &GemmCall) -> bool {
    call.lhs.dtype.is_fp8() && call.precision != Precision::FastFp8
}

/// The first store, if it is of rows that TMA can write. With it those after it that are of the
/// same type and can be written likewise.
pub(super) fn stored(call: &GemmCall) -> Vec<TmaStore> {
    let program = &call.epilogue.0;
    let dtype = program.dtype(program.stores[0].value);
    let alike = program.stores.iter().take_while(|store| program.dtype(store.value) == dtype);
    alike.map_while(|store| stored_as(call, &store.access, dtype)).take(MOST_RESULTS).collect()
}

fn stored_as(call: &GemmCall, access: &Access, dtype: DType) -> Option<TmaStore> {
    let (batch, [row, col]) = split(access);
    let (_, [step]) = one_batch(&call.batch, [batch])?;
    let base = Base::at(access.slot, dtype, access.offset);
    let bytes = dtype.bits() as i64 / 8;
    let row = if call.m == 1 { call.n.next_multiple_of(16) as i64 } else { row };
    let fits = [base.bytes, row * bytes, step * bytes].iter().all(|b| b % TMA_ALIGNMENT == 0);
    // If programs overwrite elements that they load, each element must be read before its row is
    // written.
    (fits && col == 1 && row >= call.n as i64 && step >= 0 && bytes <= 4).then_some(TmaStore {
        base,
        row,
        step,
    })
}

/// The work of a launch: products that are alike, or one. One product may be a sum of several, and
/// a loop may follow in its rows.
#[derive(Copy, Clone)]
pub(super) struct HopperWork<'a> {
    pub(super) calls: &'a [GemmCall],
    /// Products whose sum the only call stores, alike but for where their operands are; of several
    /// calls not looked at but for the first.
    pub(super) terms: &'a [GemmCall],
    pub(super) following: Option<&'a Following<'a>>,
}

impl<'a> HopperWork<'a> {
    /// Products alone.
    pub(super) fn of(calls: &'a [GemmCall]) -> Self {
        Self { calls, terms: &calls[..1], following: None }
    }
}

/// The source of the kernel for some work and a tile, on a device of so many multiprocessors.
/// `None` where they do not go together.
pub(super) fn source(
    work: HopperWork<'_>,
    fit: &Fit,
    tile: HopperTile,
    multiprocessors: u32,
) -> Option<(KernelSource, Grid)> {
    let HopperWork { calls, terms, following } = work;
    let call = &calls[0];
    let program = &call.epilogue.0;
    let out = program.dtype(program.stores[0].value);
    let whole_lines = (tile.columns * out.bits() / 8).is_multiple_of(LINE);
    let results = if following.is_none() && whole_lines { stored(call).len() } else { 0 };
    let by_tma = results > 0;
    let folds = following.map_or(0, Following::folds);
    let span = following.map_or(Some(0), |_| tile.span(call.n))?;
    let beside = if by_tma { tile.store_bytes() } else { tile.meeting_bytes(span, folds) };
    let promote = promotes(call);
    if !tile.applies(promote, [fit.lhs.by_k, fit.rhs.by_k]) {
        return None;
    }
    let steps = call.k.div_ceil(LINE * 8 / call.lhs.dtype.bits()) * terms.len();
    let lean = following.is_none() && !promote && tile.is_lean([call.m, call.n], steps);
    let stages = tile.stages(if lean { beside + ROOM } else { beside })?;
    let batch = calls.len() * call.batch.iter().product::<usize>();
    let pairs = call.m.div_ceil(tile.rows).div_ceil(tile.cluster);
    let clusters = (pairs * call.n.div_ceil(tile.columns)).checked_mul(batch)?;
    // Blocks that meet have one tile each.
    let blocks = match following {
        None => clusters.min(multiprocessors as usize / tile.cluster) * tile.cluster,
        Some(_) => clusters,
    };
    let text = epilogue::print_for(call, results.max(1), following).text;
    let flag = |value: bool| u8::from(value).to_string();
    let mut defines = epilogue::defines(call, sums(call));
    defines.extend([
        ("TILE_M", tile.rows.to_string()),
        ("TILE_N", tile.columns.to_string()),
        ("CONSUMERS", tile.consumers.to_string()),
        ("PINGPONG", flag(tile.schedule == Schedule::PingPong)),
        ("CLUSTER", tile.cluster.to_string()),
        ("STAGES", stages.to_string()),
        ("LHS_BY_K", flag(fit.lhs.by_k)),
        ("RHS_BY_K", flag(fit.rhs.by_k)),
        ("LHS_BATCHED", flag(fit.lhs.batch != 0)),
        ("RHS_BATCHED", flag(fit.rhs.batch != 0)),
        ("STORE_BY_TMA", flag(by_tma)),
        ("RESULTS", results.max(1).to_string()),
        ("PROMOTE", flag(promote)),
        ("GROUP", tile.group(pairs).to_string()),
        ("BLOCKS", blocks.to_string()),
        ("TOGETHER", calls.len().to_string()),
        ("TERMS", terms.len().to_string()),
        ("SPAN", span.to_string()),
        ("FOLDS", folds.to_string()),
        ("LEAN", flag(lean)),
    ]);
    let wgmma = wgmma(
        "wgmma",
        tile.columns,
        [call.lhs.dtype, call.rhs.dtype],
        [fit.lhs.by_k, fit.rhs.by_k],
    );
    let source = epilogue::source(
        "gemm_hopper",
        &defines,
        &(text + &wgmma + include_str!("kernels/hopper.cu")),
    );
    let threads = tile.consumers as u32 * 128 + if lean { 32 } else { 128 };
    let shared_bytes = tile.shared_bytes(stages, beside) as u32;
    Some((source, Grid { blocks: blocks as u32, threads, results, shared_bytes }))
}

/// How the kernel is launched.
pub(super) struct Grid {
    blocks: u32,
    threads: u32,
    /// Results of each product that TMA stores.
    results: usize,
    shared_bytes: u32,
}

struct Hopper {
    entry: Entry,
    /// Left and right operands of this launch.
    operands: [usize; 2],
    /// Buffers of the epilogues, one product's after the other's.
    slots: Vec<SlotId>,
    /// Maps of each left operand, of each right one, of each product's results.
    maps: Maps,
    bases: Vec<Base>,
}

/// Compiles the kernel for one call, for several that are alike (see `together`), or for one and
/// the loop over its rows (see `following`). `None` where it does not apply.
pub(super) fn compile(
    site: &Site<'_>,
    work: HopperWork<'_>,
    tile: HopperTile,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let calls = work.calls;
    let call = &calls[0];
    if site.device.architecture() != Architecture::Sm90a {
        return Ok(None);
    }
    let Some(fit) = Fit::of(call) else { return Ok(None) };
    let multiprocessors = site.device.properties().multiprocessors;
    let Some((source, grid)) = source(work, &fit, tile, multiprocessors) else { return Ok(None) };
    let config = LaunchConfig {
        grid_dim: (grid.blocks, 1, 1),
        block_dim: (grid.threads, 1, 1),
        shared_mem_bytes: grid.shared_bytes,
    };
    let entry = Entry::new(site.device, (&source, "gemm_hopper"), config)?;

    let lhs = Boxes::new(
        call.lhs.dtype,
        fit.lhs.extents(call.m, call),
        fit.lhs.boxes(tile.rows, call.lhs.dtype),
    );
    let share = tile.columns / tile.cluster;
    let rhs = Boxes::new(
        call.rhs.dtype,
        fit.rhs.extents(call.n, call),
        fit.rhs.boxes(share, call.rhs.dtype),
    );
    let program = &call.epilogue.0;
    let dtype = program.dtype(program.stores[0].value);
    let batches = call.batch.iter().product();
    let result = |of: TmaStore| {
        let step = if of.step == 0 { of.row } else { of.step };
        let extents =
            [Extent::new(call.n, 1), Extent::new(call.m, of.row), Extent::new(batches, step)];
        (of.base, Boxes::new(dtype, extents, [LINE * 8 / dtype.bits(), 64]))
    };
    let results = |call: &GemmCall| -> Vec<(Base, Boxes)> {
        match grid.results {
            // The kernel does not look at it.
            0 => vec![(fit.lhs.base, lhs.clone())],
            some => stored(call).into_iter().take(some).map(result).collect(),
        }
    };
    let rights = if work.terms.len() > 1 { work.terms } else { calls };
    let lefts = work.terms.iter().map(|term| (Base::of(&term.lhs), lhs.clone()));
    let maps = lefts
        .chain(rights.iter().map(|call| (Base::of(&call.rhs), rhs.clone())))
        .chain(calls.iter().flat_map(results));
    let (bases, boxes) = maps.unzip();
    let operands = [work.terms.len(), rights.len()];
    let others = calls[1..].iter().flat_map(|call| epilogue::print(call).slots);
    let slots =
        epilogue::print_for(call, 1, work.following).slots.into_iter().chain(others).collect();
    Ok(Some(Box::new(Hopper { entry, operands, slots, maps: Maps::new(boxes), bases })))
}

impl Launch for Hopper {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let bases: Vec<u64> = self.bases.iter().map(|base| base.address(addresses)).collect();
        let mut maps = self.maps.at(&bases)?;
        let mut slots: Vec<u64> = self.slots.iter().map(|&s| addresses.of(s)).collect();
        let [lefts, rights] = self.operands;
        let (lefts, others) = maps.split_at_mut(lefts);
        let (rights, results) = others.split_at_mut(rights);
        let mut parameters: [*mut c_void; 4] = [
            lefts.as_mut_ptr().cast(),
            rights.as_mut_ptr().cast(),
            results.as_mut_ptr().cast(),
            slots.as_mut_ptr().cast(),
        ];
        // SAFETY: the kernel takes a tensor map for each left operand, for each right one, and for
        // each result of each product (at least one). After them it takes, for each product, as
        // many addresses as `Slots` has. `parameters` holds these.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}

const _: () = assert!(SLOT_ALIGNMENT.is_multiple_of(TMA_ALIGNMENT as u64));
