//! How `decode_long.cu` cuts a call: rows for each task, and keys among the blocks of a task.
//!
//! Invariant: blocks fill the device once, as far as there are keys, and each warp has a tile.

use overdrive_ir::DType;
use overdrive_ir::plan::{KernelCall, View};

use super::cut::{Cut, PAGES, four};
use crate::compiler::Architecture;
use crate::kernels::nest::ViewStart;

/// How `decode_long.cu` cuts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LongCut {
    /// Sequences times key heads, times tasks that share the rows of a key head.
    tasks: usize,
    /// Queries of all heads of a key head that a task takes.
    rows: usize,
    /// Tasks that share the rows of a key head.
    parts: usize,
    /// Blocks that share the keys of a task.
    split: usize,
    /// Warps of a block.
    warps: usize,
    /// Bytes of a warp's tile of keys and values.
    tile_bytes: usize,
    /// Channels of a head.
    channels: usize,
}

impl LongCut {
    /// Rows of an instruction, whose other eight hold remainders.
    const ROWS: usize = 8;
    /// Multiprocessors of a large GPU. Each holds one block of eight warps.
    const BLOCKS: usize = 132;
    /// Most warps of a block.
    const WARPS: usize = 8;
    /// Warps of a block while eight would leave multiprocessors without one.
    const WARPS_OF_FEW: usize = 4;
    /// Fewest bits of a row: 16 bytes for each of four lanes.
    const ROW_BITS: usize = 512;
    /// Tiles of a warp that are in shared memory together.
    const STAGES: usize = 2;
    /// Bytes of the keys of a tile, and fewest keys of one.
    const TILE: (usize, usize) = (4096, 16);
    /// Bytes of shared memory of a block: on architectures that hold so many, and on all.
    const SHARED_BYTES: [usize; 2] = [227 << 10, 99 << 10];
    /// Fewest tiles of a warp when blocks are more than the device holds at once.
    const TILES_OF_WAVES: usize = 8;

    /// That of k and v as numbers in order; `None` where another kernel is better or this one has
    /// no form.
    pub(super) fn of_numbers(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        // A tile of 64 queries reads keys once, which pays off if one head has many queries.
        let queries = four(&call.operands[0])?[2];
        Self::of_rows(call, architecture).filter(|cut| queries == 1 || cut.parts == 1)
    }

    /// That of k and v as codes, or in pages; `None` where this kernel has no form.
    pub(super) fn of_rows(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
        let d = four(q)?[3];
        let fits = matches!(q.ty.dtype, DType::F16 | DType::BF16)
            && matches!(d, 32 | 64 | 128 | 256)
            && d * k.ty.dtype.bits() >= Self::ROW_BITS
            && four(v)?[3] == d
            && [q, k, v].into_iter().all(is_dense);
        fits.then(|| Self::of(call, architecture)).flatten()
    }

    fn of(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        let [q, k] = [0, 1].map(|i| &call.operands[i]);
        let ([batch, heads, queries, channels], [_, shared, keys, _]) = (four(q)?, four(k)?);
        let rows = (heads / shared.max(1)) * queries;
        if rows == 0 || batch == 0 || channels == 0 || keys <= Cut::SHORT {
            return None;
        }
        let parts = rows.div_ceil(Self::ROWS);
        let tasks = batch * shared * parts;
        let row_bytes = channels * k.ty.dtype.bits() / 8;
        let of_tile = (Self::TILE.0 / row_bytes).max(Self::TILE.1);
        // Values lie in four groups with a gap of 32 bytes, and codes have two scales a key.
        let scales = if k.ty.dtype.bits() == 8 { 8 * of_tile } else { 0 };
        let tile_bytes = 2 * of_tile * row_bytes + 4 * 32 + scales;
        let tiles = keys.div_ceil(of_tile);
        let is_large = matches!(architecture, Architecture::Sm90a | Architecture::Sm100a);
        let shared_bytes = Self::SHARED_BYTES[usize::from(!is_large)];
        let most = Self::WARPS.min(shared_bytes / (Self::STAGES * tile_bytes));
        let is_many = tasks * tiles >= Self::BLOCKS * Self::WARPS;
        let warps = most.min(if is_many { Self::WARPS } else { Self::WARPS_OF_FEW });
        let warps = 1 << warps.ilog2();
        let rows = rows.div_ceil(parts);
        let split = Self::split(tasks, tiles, warps);
        Some(Self { tasks, rows, parts, split, warps, tile_bytes, channels })
    }

    /// Blocks for each of so many tasks of so many tiles.
    fn split(tasks: usize, tiles: usize, warps: usize) -> usize {
        let once = (Self::BLOCKS / tasks).max(1);
        // The time of `n` blocks a task is their waves through the device over `n`.
        let waves = |n: usize| (tasks * n).div_ceil(Self::BLOCKS);
        let most = (4 * once).min(tiles / (warps * Self::TILES_OF_WAVES));
        let mut best = once;
        for n in once + 1..=most {
            // More blocks begin and end more often, which has to be worth a fifth.
            if 5 * waves(n) * best < 4 * waves(best) * n {
                best = n;
            }
        }
        // No more blocks than give every warp a tile, and as few as need no more turns.
        let turns = tiles.div_ceil(best * warps);
        tiles.div_ceil(turns * warps)
    }

    /// Blocks of a launch.
    pub(super) fn blocks(self) -> usize {
        self.tasks * self.split
    }

    /// Threads of a block.
    pub(super) fn threads(self) -> u32 {
        32 * self.warps as u32
    }

    /// Dynamic shared memory of a block.
    pub(super) fn shared_bytes(self) -> usize {
        self.warps * Self::STAGES * self.tile_bytes
    }

    /// Scratch of a launch, by which blocks of a task exchange partial results: `PART` of
    /// `decode_long_tiles.cuh` for each block.
    pub(super) fn scratch_bytes(self) -> usize {
        let part = (self.rows * (self.channels + 2)).next_multiple_of(4);
        if self.split == 1 { 0 } else { 4 * self.blocks() * part }
    }

    /// Bytes of the tickets, which are zero between launches: u32 for each task.
    pub(super) fn ticket_bytes(self) -> usize {
        if self.split == 1 { 0 } else { 4 * self.tasks }
    }

    /// The kernel's text. `kept` has the definitions of codes and of pages, if there are any.
    pub(super) fn text(self, kept: &str) -> String {
        let Self { rows, parts, split, warps, .. } = self;
        let stages = Self::STAGES;
        format!(
            "{kept}constexpr int ROWS = {rows}, PARTS = {parts}, SPLIT = {split};\n\
             constexpr int WARPS = {warps}, STAGES = {stages};\n"
        ) + PAGES
            + include_str!("decode_long_tiles.cuh")
            + include_str!("decode_long_merge.cuh")
            + include_str!("decode_long.cu")
    }
}

/// Whether channels are contiguous and each row begins at 16 bytes, as its copies need.
fn is_dense(view: &View) -> bool {
    let elements = (128 / view.ty.dtype.bits()) as i64;
    let outer = view.strides[..3].iter().all(|stride| stride % elements == 0);
    outer && view.strides[3] == 1 && ViewStart::new(view).is_aligned(16)
}

#[cfg(test)]
mod tests {
    use super::LongCut;

    #[test]
    fn blocks_fill_the_device_once() {
        // Tasks, tiles and warps; blocks of a task.
        let cases = [
            // GPT-2, 16 heads and 16,384 keys of 64 channels.
            ([16, 512, 8], 8),
            // Four key heads of 32,768 keys.
            ([4, 1024, 8], 32),
            // Eight sequences of eight key heads, 8,192 keys of 128 channels.
            ([64, 512, 8], 2),
            ([512, 128, 8], 1),
            // Few keys: a tile for each warp.
            ([12, 33, 4], 9),
            ([1, 33, 4], 9),
        ];
        for ([tasks, tiles, warps], split) in cases {
            assert_eq!(LongCut::split(tasks, tiles, warps), split, "{tasks} {tiles} {warps}");
        }
    }

    /// 136 blocks of the same length would leave 128 multiprocessors idle half of the time.
    #[test]
    fn blocks_that_are_a_few_too_many_are_cut_smaller() {
        assert_eq!(LongCut::split(136, 1024, 8), 2);
        // Warps of few tiles are not worth it.
        assert_eq!(LongCut::split(136, 64, 8), 1);
    }

    #[test]
    fn every_warp_has_a_tile_and_no_turn_is_spared() {
        for tasks in [1, 3, 12, 66, 67, 131, 132, 133, 1000] {
            for tiles in [17, 33, 65, 129, 1000, 8192] {
                for warps in [2, 4, 8] {
                    let split = LongCut::split(tasks, tiles, warps);
                    assert!((split - 1) * warps < tiles, "{tasks} {tiles} {warps}: {split}");
                    let turns = |split: usize| tiles.div_ceil(split * warps);
                    let fewer = split == 1 || turns(split - 1) > turns(split);
                    assert!(fewer, "{tasks} {tiles} {warps}: {split}");
                }
            }
        }
    }
}
