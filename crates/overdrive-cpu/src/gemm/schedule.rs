//! How a product is cut: into blocks that fit the caches, and into tiles of C for the threads.
//!
//! The blocks follow "Analytical modeling is enough for high-performance BLIS" (Low et al., 2016),
//! with A and B exchanged. An A panel over `kc` stays in L1 while a packed B block of `nc` columns
//! streams past it from L2. So the tiles of C follow each other along its rows. A *tile* is a
//! product of its own, with its own packing. No thread waits for another within a product. The
//! price is that tiles in one row of the grid pack the same A.

use super::kernel::{Element, MicroKernel};

/// The sizes that a schedule depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemmSize {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Matrices of the batch.
    pub batch: usize,
}

/// Facts about the product beside its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    /// B is packed already.
    pub packed_b: bool,
    /// Sums are kept in scratch, and not in C.
    pub scratch_sums: bool,
    /// Sums are handed to an epilogue, strip by strip.
    pub strips: bool,
}

/// Blocks and tiles of one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Rows of an A block, a multiple of the panel's width.
    pub mc: usize,
    /// Columns of a B block, a multiple of the panel's width.
    pub nc: usize,
    /// Depth of a block, a multiple of the kernel's `k_multiple`; the last block of k may be
    /// shallower.
    pub kc: usize,
    /// Rows that an epilogue is given at once, a multiple of the panel's width.
    pub strip: usize,
    /// Rows and columns of a tile, multiples of the panels' widths.
    pub tile: [usize; 2],
    /// Tiles along the rows and columns of each matrix.
    pub grid: [usize; 2],
}

/// Bytes of each core's own caches.
#[derive(Debug, Clone, Copy)]
struct Caches {
    l1: usize,
    l2: usize,
}

/// Cost of packing an element, in multiply-adds of the micro-kernel. It was measured at about a
/// third of a cycle, against 32 multiply-adds a cycle for f32 with AVX-512.
const PACK_COST: usize = 12;

/// Columns of a tile whose sums wait in scratch: enough to amortise packing A.
const WAITING_COLS: usize = 1024;

/// The depth of k blocks: of `k` cut evenly, as deep as leaves an A panel in two thirds of L1. It
/// depends on nothing but the kernel and k, so that a B packed once serves any m and any number of
/// threads.
pub(super) fn depth<T: Element>(kernel: &MicroKernel<T>, k: usize) -> usize {
    let multiple = kernel.b.k_multiple.max(8);
    // Bytes leave room for more: sums are loaded and stored less often.
    let most = (1024 / kernel.packed_bytes).max(512);
    let most = (caches().l1 * 2 / 3 / (kernel.a.width * kernel.packed_bytes)).clamp(multiple, most);
    let blocks = k.div_ceil(most / multiple * multiple).max(1);
    k.div_ceil(blocks).max(1).next_multiple_of(multiple)
}

impl Schedule {
    pub(super) fn new<T: Element>(
        kernel: &MicroKernel<T>,
        size: GemmSize,
        traits: Traits,
        threads: usize,
    ) -> Self {
        let Caches { l2, .. } = caches();
        let [mr, nr] = [kernel.a.width, kernel.b.width];
        let kc = depth(kernel, size.k);
        let waits = traits.scratch_sums && size.k > kc;
        let even = |len: usize, most: usize, width: usize| {
            let parts = len.div_ceil(most.max(width)).max(1);
            len.div_ceil(parts).max(1).next_multiple_of(width)
        };
        let grid = balanced_grid(kernel, size, traits, threads);
        let mut tile = [
            even(size.m, size.m.div_ceil(grid[0]), mr),
            even(size.n, size.n.div_ceil(grid[1]), nr),
        ];
        if waits {
            tile[1] = even(tile[1], WAITING_COLS, nr);
        }
        let line = kc * kernel.packed_bytes;
        // Tiles outrun the memory. So the next block is prefetched during that time, strip by
        // strip, and needs room too.
        let asks = kernel.has_tiles() && traits.packed_b;
        let most = if asks { l2 / 4 / line } else { l2 / 2 / line };
        let nc = even(tile[1], most, nr);
        // All of a tile's A is packed at once, within reason, so that B is packed but once. Sums
        // that wait in scratch for the next block of k should wait in L2. If B is packed again for
        // each block of rows, they get more of L2.
        let sum = size_of::<T::Acc>();
        let waiting = if traits.packed_b { l2 / 2 } else { l2 };
        let mc = if waits { (waiting / sum / tile[1]).min(2 * l2 / line) } else { 2 * l2 / line };
        let mc = even(tile[0], mc, mr);
        let strip = if traits.strips || asks { even(mc, l2 / 32 / sum / nc, mr) } else { mc };
        Self { mc, nc, kc, strip, tile, grid: [size.m.div_ceil(tile[0]), size.n.div_ceil(tile[1])] }
    }

    /// Rows of sums in scratch, and elements from one row to the next. A strip of a block waits
    /// there when it is done at once. While k goes on, all sums of an A block do.
    pub(super) fn sums<A>(&self, k: usize) -> [usize; 2] {
        let [rows, cols] =
            if k > self.kc { [self.mc, self.tile[1]] } else { [self.strip, self.nc] };
        // A line of the cache beyond the row: rows that lie powers of two apart evict each other.
        [rows, cols + 64 / size_of::<A>()]
    }
}

/// Multiply-adds that are done before other threads could have been woken.
const WORTH_SHARING: usize = 1 << 18;

/// Columns that each task of a skinny GEMM takes: sums stay in L1, and threads have as much
/// to do.
pub(super) fn skinny_columns(size: GemmSize, threads: usize) -> usize {
    /// Sums of a task.
    const SUMS: usize = 4096;
    /// Columns that a task takes at least: whole vectors of any width, and a few cache lines of
    /// each row of B.
    const LEAST: usize = 64;
    let shared = size.batch < threads && size.m * size.n * size.k >= WORTH_SHARING;
    let parts = size.n.div_ceil(SUMS / size.m).max(if shared { threads } else { 1 });
    size.n.div_ceil(parts).next_multiple_of(LEAST)
}

/// The grid of tiles that lets `threads` threads finish first, with the packing of each tile
/// counted.
fn balanced_grid<T: Element>(
    kernel: &MicroKernel<T>,
    size: GemmSize,
    traits: Traits,
    threads: usize,
) -> [usize; 2] {
    let [mr, nr] = [kernel.a.width, kernel.b.width];
    let panels = [size.m.div_ceil(mr).max(1), size.n.div_ceil(nr).max(1)];
    // A batch that fills all threads evenly enough needs no cutting, and a small product is not
    // worth it.
    let small = size.batch * size.m * size.n * size.k < WORTH_SHARING;
    let most = if small || size.batch >= 4 * threads { 1 } else { 4 * threads };
    let mut best = (u128::MAX, [1, 1]);
    for rows in 1..=most.min(panels[0]) {
        for cols in 1..=(most / rows).min(panels[1]) {
            let [m, n] = [panels[0].div_ceil(rows) * mr, panels[1].div_ceil(cols) * nr];
            let packed = if traits.packed_b { m } else { m + n };
            let rounds = (size.batch * rows * cols).div_ceil(threads);
            let cost = rounds as u128 * (m as u128 * n as u128 + (packed * PACK_COST) as u128);
            if cost < best.0 {
                best = (cost, [rows, cols]);
            }
        }
    }
    best.1
}

/// The caches of this CPU as it describes itself, or the smallest in use where it does not.
fn caches() -> Caches {
    static CACHES: std::sync::OnceLock<Caches> = std::sync::OnceLock::new();
    *CACHES.get_or_init(|| {
        let described = described_caches();
        let size =
            |level, otherwise| described.iter().find(|c| c.0 == level).map_or(otherwise, |c| c.1);
        Caches { l1: size(1, 32 << 10).max(16 << 10), l2: size(2, 512 << 10).max(256 << 10) }
    })
}

/// `(level, bytes)` of each data or unified cache, from the deterministic cache parameters: leaf 4
/// on Intel, 0x8000_001D in the same form on AMD.
#[cfg(target_arch = "x86_64")]
fn described_caches() -> Vec<(u32, usize)> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let mut found = Vec::new();
    for (leaf, range) in [(4, 0), (0x8000_001D, 0x8000_0000)] {
        if __cpuid(range).eax < leaf {
            continue;
        }
        for index in 0..8 {
            let cache = __cpuid_count(leaf, index);
            let (kind, level) = (cache.eax & 0x1f, cache.eax >> 5 & 0x7);
            if kind == 0 {
                break;
            }
            if kind != 2 {
                let field = |word: u32, low: u32, bits: u32| {
                    ((word >> low & ((1 << bits) - 1)) + 1) as usize
                };
                let ways =
                    field(cache.ebx, 22, 10) * field(cache.ebx, 12, 10) * field(cache.ebx, 0, 12);
                found.push((level, ways * (cache.ecx as usize + 1)));
            }
        }
    }
    found
}

/// Nothing: the architecture does not let a program ask.
#[cfg(not(target_arch = "x86_64"))]
fn described_caches() -> Vec<(u32, usize)> {
    Vec::new()
}
