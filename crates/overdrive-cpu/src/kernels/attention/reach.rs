//! The keys that a query may see before a mask function is applied.
#![allow(unsafe_code)] // Writes scores in a worker's scratch.

use overdrive_ir::ops::attention::threshold::TILE;

/// Queries and keys of a tile that a threshold skips.
pub(super) const SKIPPED_QUERIES: usize = TILE[0];
pub(super) const SKIPPED_KEYS: usize = TILE[1];

/// Queries that are skipped together, and their places in scratch: whole panels, whose parts are
/// aligned.
pub(super) const fn skipped_queries(width: usize) -> [usize; 2] {
    // All widths of kernels divide 64 or 96.
    let divides = SKIPPED_QUERIES.is_multiple_of(width);
    [SKIPPED_QUERIES, if divides { SKIPPED_QUERIES } else { 96 }]
}

/// Sizes of an attention and its mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) causal: bool,
}

/// Fewest keys of a block: of fewer, the online softmax costs as much as the products.
const FEWEST: usize = 64;

/// Keys of a block, about `most`. A block is whole tiles of the kernel, of `rows` keys each. Blocks
/// are about equal, since a much shorter one would cost more than its share. If a mask function is
/// the same for `cell` keys, blocks begin where cells do, so that most are hidden or visible as a
/// whole.
pub(super) fn block_of(keys: usize, most: usize, (rows, cell): (usize, usize)) -> usize {
    let parts = cell.div_ceil(most);
    if cell > 1 && cell < keys && cell % parts == 0 {
        let part = cell / parts;
        return part * FEWEST.div_ceil(part);
    }
    let blocks = keys.div_ceil(most.next_multiple_of(rows)).max(1);
    keys.div_ceil(blocks).max(1).next_multiple_of(rows)
}

/// A block of scores: `seen` rows of keys, `stride` elements apart, by `width` queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreExtent {
    pub(super) seen: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
}

impl Reach {
    /// Keys that queries before `end` may see: the last query is aligned with the last key.
    pub(super) fn visible(&self, end: usize) -> usize {
        if self.causal {
            (end + self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }

    /// Hides each key from the queries of a block that come before it: the first few of its row.
    ///
    /// # Safety
    /// The scores have the extent.
    pub(super) unsafe fn hide<A: Copy>(
        &self,
        (scores, extent): (*mut A, ScoreExtent),
        [query, key]: [usize; 2],
        hidden: A,
    ) {
        if !self.causal {
            return;
        }
        let ScoreExtent { seen, width, stride } = extent;
        for row in self.visible(query + 1).saturating_sub(key)..seen {
            let first = (key + row + self.queries).saturating_sub(query + self.keys).min(width);
            // SAFETY: `row` is below `seen` and `first` at most `width`, so these scores exist.
            unsafe { std::slice::from_raw_parts_mut(scores.add(row * stride), first) }.fill(hidden);
        }
    }
}
