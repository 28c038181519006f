//! Block masks: the blocks of keys that a mask function shows to each tile of queries. Two small
//! kernels find them before attention (`block_mask.cuh`), so that hidden blocks cost nothing.
//!
//! Invariant: they hold for any function, since every pair of a block is evaluated until its class
//! is certain. Pairs that the function cannot tell apart are evaluated once.
//!
//! A function that reads no tensor has them made once, when the call is compiled. Any other has
//! them made in each call, since nobody says when a tensor changes.
//!
//! Source: Dong et al., "Flex attention", arXiv:2412.05496, section 4.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::Graph;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_passes::greatest_common_divisor;

use super::region::PrintedRegion;
use super::shape::AttentionShape;
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Refusal, Site};
use crate::memory::DeviceBytes;

/// Warps of a block of the grid: `MASK_WARPS` of `block_mask.cuh`.
const WARPS: usize = 8;
/// Most queries that a lane evaluates between two looks at whether a class is certain.
const CHUNK: usize = 16;
/// Blocks of the grid that a multiprocessor runs at once.
const RESIDENT: usize = 8;

/// The lists that a kernel walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    /// Each tile of queries has a list of blocks of keys.
    OfQueries,
    /// Each block of keys has a list of tiles of queries, and each tile the ranks of its blocks. A
    /// list has the `least` last tiles in any case, so that no task is without work.
    OfKeys { least: usize },
}

/// The form of the block masks of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMask {
    /// Queries of a tile, and keys of a block.
    tile: [usize; 2],
    order: Lists,
    /// Queries and keys of a cell, for whose pairs the function is the same. Both divide the tile.
    cell: [usize; 2],
    /// Whether the function reads the index of the sequence, and that of the head. All others share
    /// a mask.
    by: [bool; 2],
    reads_tensors: bool,
    /// Tiles of a mask, and of all masks.
    tiles: usize,
    rows: usize,
    /// Blocks of keys.
    blocks: usize,
    /// Query heads of a sequence.
    heads: usize,
}

impl BlockMask {
    /// Those of a mask function that reads `captures`.
    ///
    /// # Errors
    /// If no scalar code computes the function, or if there are more blocks than one launch takes.
    pub(super) fn of(
        call: &KernelCall,
        (mask, captures): (&Graph, &[View]),
        (tile, order): ([usize; 2], Lists),
    ) -> Result<Self, Refusal> {
        let [q, k] = [0, 1].map(|i| &call.operands[i]);
        let (sizes, keys) = (q.ty.sizes(), k.ty.sizes()[2]);
        let printed = PrintedRegion::new(mask, captures, q.ty.dtype)?;
        let by = [0, 1].map(|dimension| printed.reads_index(dimension));
        let masks = |dimension: usize| if by[dimension] { sizes[dimension] } else { 1 };
        let (tiles, blocks) = (sizes[2].div_ceil(tile[0]), keys.div_ceil(tile[1]));
        let rows = masks(0) * masks(1) * tiles;
        // The larger of both kinds of lists.
        if rows.saturating_mul(blocks + 1 + blocks.div_ceil(tiles)) > i32::MAX as usize {
            let (batch, heads) = (masks(0), masks(1));
            return Err(Refusal::Unsupported(format!(
                "{batch} x {heads} masks of {} queries and {keys} keys have more blocks than one \
                 launch takes; split the batch",
                sizes[2]
            )));
        }
        let reads_tensors = !printed.region.reads.is_empty();
        let grain = printed.region.grain();
        let cell = [0, 1].map(|i| greatest_common_divisor(tile[i], grain[i]));
        Ok(Self { tile, order, cell, by, reads_tensors, tiles, rows, blocks, heads: sizes[1] })
    }

    /// The kernels' text, and what the lists' readers need.
    pub(super) fn text(self) -> String {
        let ([queries, keys], [by_batch, by_head]) = (self.tile, self.by);
        let [cell, cell_keys] = self.cell;
        let by_keys = self.order != Lists::OfQueries;
        let chunk = cell * greatest_common_divisor(queries / cell, CHUNK);
        format!(
            "constexpr int MASK_QUERIES = {queries}, MASK_KEYS = {keys};\nconstexpr int \
             CELL_QUERIES = {cell}, CELL_KEYS = {cell_keys}, MASK_CHUNK = {chunk};\nconstexpr bool \
             BY_BATCH = {by_batch}, BY_HEAD = {by_head}, BY_KEYS = {by_keys};\n{}",
            include_str!("block_mask.cuh")
        )
    }

    /// Blocks of keys of all masks, if these have lists.
    fn columns(self) -> usize {
        if self.order == Lists::OfQueries { 0 } else { self.rows / self.tiles * self.blocks }
    }

    /// Numbers of the lines of rows (lists or ranks), and of columns.
    fn line_lengths(self) -> [usize; 2] {
        [self.rows * (self.blocks + 1), self.columns() * (self.tiles + 1)]
    }

    /// Bytes of lists, ranks and classes.
    fn bytes(self) -> usize {
        4 * self.line_lengths().iter().sum::<usize>() + self.rows * self.blocks
    }

    /// Scratch of a call, in bytes.
    pub(super) fn scratch_bytes(self) -> usize {
        if self.reads_tensors { self.bytes() } else { 0 }
    }
}

/// `MaskGrid` of `block_mask.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskGrid {
    classes: CUdeviceptr,
    lists: CUdeviceptr,
    ranks: CUdeviceptr,
    rows: i32,
    tiles: i32,
    blocks: i32,
    heads: i32,
    least: i32,
}

/// The launches that make the block masks of a call.
pub(super) struct CompiledBlockMask {
    mask: BlockMask,
    classes: Entry,
    lists: Entry,
    shape: AttentionShape,
    /// Those of a function that reads no tensor.
    settled: Option<DeviceBytes>,
}

impl CompiledBlockMask {
    /// Compiles them from a source that has their text, for a call with so many more parameters.
    pub(super) fn new(
        site: &Site<'_>,
        (mask, shape): (BlockMask, AttentionShape),
        source: &KernelSource,
        captures: usize,
    ) -> Result<Self, Refusal> {
        let most = RESIDENT * site.device.properties().multiprocessors as usize;
        let entry = |name: &str, warps: usize| {
            let config = LaunchConfig {
                grid_dim: (warps.div_ceil(WARPS).min(most) as u32, 1, 1),
                block_dim: (32 * WARPS as u32, 1, 1),
                shared_mem_bytes: 0,
            };
            Entry::new(site.device, (source, name), config)
        };
        let mut compiled = Self {
            mask,
            classes: entry("attention_classes", mask.rows * mask.blocks)?,
            lists: entry("attention_lists", mask.rows + mask.columns())?,
            shape,
            settled: None,
        };
        if !mask.reads_tensors {
            let home = DeviceBytes::new(site.device, mask.bytes())?;
            let _turn = site.device.turn();
            compiled.launch(site.device.stream(), home.address(), &vec![0; captures])?;
            compiled.settled = Some(home);
        }
        Ok(compiled)
    }

    /// Enqueues the launches, unless the masks are settled. `scratch` has room for them. Returns
    /// the kernel's parameter.
    pub(super) fn make(
        &self,
        stream: &Arc<CudaStream>,
        scratch: CUdeviceptr,
        captures: &[u64],
    ) -> Result<MaskGrid, Error> {
        match &self.settled {
            Some(home) => Ok(self.grid(home.address())),
            None => self.launch(stream, scratch, captures),
        }
    }

    fn launch(
        &self,
        stream: &Arc<CudaStream>,
        home: CUdeviceptr,
        captures: &[u64],
    ) -> Result<MaskGrid, Error> {
        let (mut grid, mut shape, mut captures) = (self.grid(home), self.shape, captures.to_vec());
        let mut parameters: Vec<*mut c_void> =
            vec![(&raw mut shape).cast(), (&raw mut grid).cast()];
        let lists = &mut parameters[1..].to_vec();
        parameters.extend(captures.iter_mut().map(|at| (at as *mut u64).cast::<c_void>()));
        // SAFETY: the parameters are those of the kernels, and `home` has room for all classes and
        // lists. A function that is given no tensors reads none.
        unsafe {
            self.classes.launch(stream, &mut parameters)?;
            self.lists.launch(stream, lists)?;
        }
        Ok(grid)
    }

    fn grid(&self, home: CUdeviceptr) -> MaskGrid {
        let BlockMask { rows, tiles, blocks, heads, order, .. } = self.mask;
        let [of_rows, of_columns] = self.mask.line_lengths().map(|length| 4 * length as u64);
        let (lists, ranks, least) = match order {
            Lists::OfQueries => (home, 0, 0),
            Lists::OfKeys { least } => (home + of_rows, home, least),
        };
        let classes = home + of_rows + of_columns;
        let [rows, tiles, blocks, heads, least] =
            [rows, tiles, blocks, heads, least].map(|n| n as i32);
        MaskGrid { classes, lists, ranks, rows, tiles, blocks, heads, least }
    }
}
