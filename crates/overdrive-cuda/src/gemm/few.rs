//! Our kernel for products of few rows on Hopper (a batch of a small network, decoding): which it
//! takes, how it cuts the contracted index, and its launch (`kernels/few.cu` says how it works).
//!
//! Invariant: two blocks fit on a multiprocessor, so that the next layer's weights are on their way
//! while this one finishes.

use super::base::Base;
use super::epilogue;
use super::hopper::{Fit, wgmma};
use super::problem::sums;
use crate::Error;
use crate::compiler::{Architecture, Source};
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Maps};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{GemmCall, SlotId};
use std::ffi::c_void;
use std::sync::Arc;

/// Most rows: they are columns of one matrix instruction, and their sums stay in registers.
const ROWS: usize = 64;
/// Outputs of a block: rows of one matrix instruction.
const OUTPUTS: usize = 64;
/// Bytes of a tile's lines: what the widest swizzle spans.
const LINE: usize = 128;
/// Warpgroups of a block.
const GROUPS: usize = 4;
/// Blocks that may share the contracted index.
pub(super) const SPLITS: [usize; 3] = [1, 2, 4];
/// Dynamic shared memory that each of two blocks may have, less what the barriers take.
const SHARED_BYTES: usize = 113 * 1024 - 512;
/// For bringing the first tile to its alignment.
const SLACK: usize = 1024;

/// How a call is cut.
pub(super) struct Cut {
    split: usize,
    /// Blocks of the grid.
    blocks: usize,
    /// Rows of x, as columns of an instruction.
    columns: usize,
    stages: usize,
}

impl Cut {
    pub(super) fn new(call: &GemmCall, split: usize) -> Self {
        let columns = call.m.next_multiple_of(8);
        let tiles = call.k.div_ceil(LINE * 8 / call.lhs.dtype.bits()).div_ceil(split);
        let blocks = call.n.div_ceil(OUTPUTS) * split;
        let one = Self { split, blocks, columns, stages: GROUPS };
        let fitting = (SHARED_BYTES - SLACK - one.share_bytes()) / one.stage_bytes();
        let stages = tiles.next_multiple_of(GROUPS).min(fitting / GROUPS * GROUPS);
        Self { stages, ..one }
    }

    fn stage_bytes(&self) -> usize {
        (OUTPUTS + self.columns) * LINE
    }

    /// What a block gets of the sums of its cluster.
    fn share_bytes(&self) -> usize {
        if self.split > 1 { OUTPUTS * self.columns * 4 } else { 0 }
    }

    fn shared_bytes(&self) -> usize {
        SLACK + self.stages * self.stage_bytes() + self.share_bytes()
    }
}

/// The call as the Hopper kernels see it, if this one takes it.
fn fit(call: &GemmCall) -> Option<Fit> {
    let few = (1..=ROWS).contains(&call.m) && call.lhs.dtype.bits() == 16;
    let single = call.batch.iter().product::<usize>() == 1;
    Fit::of(call).filter(|fit| few && single && fit.lhs.by_k)
}

/// The ways to cut the contracted index that are worth timing, best guess first; none where the
/// kernel cannot take the call. A cluster needs room in one part of the device: clusters of four
/// are no slower alone, but beside the kernel before they find it only while half of the
/// multiprocessors are free, and eight blocks were slower in any case.
pub(super) fn splits(call: &GemmCall, multiprocessors: u32) -> Vec<usize> {
    let tiles = call.n.div_ceil(OUTPUTS);
    let has_room = |&split: &usize| {
        let places = if split > 2 { multiprocessors / 2 } else { multiprocessors };
        split == 1 || tiles * split <= places as usize
    };
    if fit(call).is_none() { vec![] } else { SPLITS.into_iter().filter(has_room).rev().collect() }
}

/// Whether a step of the call may write the weights while it runs.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Weights {
    /// None does.
    Settled,
    /// One may.
    Moving,
}

/// The source of the kernel for a call that it takes.
pub(super) fn source(call: &GemmCall, cut: &Cut, weights: Weights) -> Option<Source> {
    let fit = fit(call)?;
    let mut defines = epilogue::defines(call, sums(call));
    defines.extend([
        ("SPLIT", cut.split.to_string()),
        ("GROUPS", GROUPS.to_string()),
        ("STAGES", cut.stages.to_string()),
        ("RHS_BY_K", u8::from(fit.rhs.by_k).to_string()),
        ("SETTLED", u8::from(weights == Weights::Settled).to_string()),
    ]);
    let instruction =
        wgmma("wgmma", cut.columns, [call.rhs.dtype, call.lhs.dtype], [fit.rhs.by_k, true]);
    let text = epilogue::print(call).text + &instruction + include_str!("kernels/few.cu");
    Some(epilogue::source("gemm_few", &defines, &text))
}

struct Few {
    entry: Entry,
    /// Of the weights, of x.
    bases: [Base; 2],
    maps: Maps,
    /// Buffers of the epilogue.
    slots: Vec<SlotId>,
}

/// Compiles the kernel; `None` where it does not apply.
pub(super) fn compile(
    site: &Site<'_>,
    call: &GemmCall,
    split: usize,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let Some(fit) = fit(call).filter(|_| site.device.architecture() == Architecture::Sm90a) else {
        return Ok(None);
    };
    let weights = if site.is_settled(call.rhs.slot) { Weights::Settled } else { Weights::Moving };
    let cut = Cut::new(call, split);
    let Some(source) = source(call, &cut, weights) else { return Ok(None) };
    let config = LaunchConfig {
        grid_dim: (cut.blocks as u32, 1, 1),
        block_dim: ((GROUPS * 128) as u32, 1, 1),
        shared_mem_bytes: cut.shared_bytes() as u32,
    };
    let dtype = call.lhs.dtype;
    let boxes = vec![
        Boxes::new(dtype, fit.rhs.extents(call.n, call), fit.rhs.boxes(OUTPUTS, dtype)),
        Boxes::new(dtype, fit.lhs.extents(call.m, call), fit.lhs.boxes(cut.columns, dtype)),
    ];
    Ok(Some(Box::new(Few {
        entry: Entry::new(site.device, (&source, "gemm_few"), config)?,
        bases: [fit.rhs.base, fit.lhs.base],
        maps: Maps::new(boxes),
        slots: epilogue::print(call).slots,
    })))
}

impl Launch for Few {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut maps = self.maps.at(&self.bases.map(|base| base.address(addresses)))?;
        let mut slots: Vec<u64> = self.slots.iter().map(|&slot| addresses.of(slot)).collect();
        let [weights, inputs] = &mut *maps else { unreachable!("as many maps as boxes") };
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut *weights).cast(), (&raw mut *inputs).cast(), slots.as_mut_ptr().cast()];
        // SAFETY: two tensor maps, and as many addresses as `Slots` has.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
