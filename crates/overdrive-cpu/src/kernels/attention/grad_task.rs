//! One block of the gradients: some keys against some queries of a head.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use super::dropout::{Dropping, Kept};
use super::function::{Functions, Position, Visible};
use super::reach::{Reach, ScoreExtent};
use super::softmax::Score;
use super::task::HeadRows;
use super::weigh::{Weigh, Weighed};
use crate::gemm::{BlockProduct, Element, MicroKernel, Narrow, OperandLines};
use crate::loops::isa::{Ahead, LaneEntry, Operands};
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Scratch, ScratchParts};

/// Sizes of the attention and of its blocks, and the kernels.
#[derive(Debug)]
pub(super) struct AttentionGradShape<T: Element> {
    pub(super) kernel: &'static MicroKernel<T>,
    pub(super) weigh: Weigh,
    pub(super) hide: LaneEntry,
    pub(super) steepen: LaneEntry,
    pub(super) functions: Functions,
    pub(super) dropping: Option<Dropping>,
    pub(super) reach: Reach,
    /// Channels of q and k.
    pub(super) depth: usize,
    /// Channels of v.
    pub(super) values: usize,
    /// Factor that turns scores into exponents of 2.
    pub(super) factor: f64,
    /// Queries of a group, a multiple of the kernel's columns.
    pub(super) group: usize,
    /// Keys of a block.
    pub(super) block: usize,
    /// Blocks of a tile.
    pub(super) blocks: usize,
}

/// The gradients that a task sums up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) queries: bool,
    pub(super) keys: bool,
}

/// The parts of a worker's scratch.
#[derive(Debug)]
pub(super) struct AttentionGradScratch<'a, A> {
    /// For a group: q and dout, packed as right operands of scores and slopes, and again as those
    /// of the gradients of k and v.
    group: [*mut u8; 4],
    /// For each block of a tile: k and v, packed as left operands, and k packed as that of the
    /// gradient of q.
    tile: [*mut u8; 3],
    /// Scores and slopes, keys by queries; and the slopes of a score function.
    scores: *mut A,
    slopes: *mut A,
    steep: *mut A,
    rounded: *mut u8,
    packed: *mut u8,
    packed_slopes: *mut u8,
    /// The log-sum-exp and delta of the queries of a group.
    pub(super) rows: [*mut A; 2],
    /// Sums of dq: for each group of queries, channel by query.
    pub(super) dq: *mut A,
    /// Sums of dk and dv, key by channel.
    pub(super) dk: *mut A,
    pub(super) dv: *mut A,
    /// For a group, query by channel.
    pub(super) turned: *mut A,
    visible: *mut u8,
    functions: *mut u8,
    /// Factors on weights, if some are dropped.
    kept: *mut A,
    _placed: PlacedParts<'a, 22>,
}

/// Extent of a block: its number in the tile, its keys, the keys that its queries see, and its
/// queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyBlock {
    pub(super) number: usize,
    pub(super) keys: usize,
    pub(super) seen: usize,
    pub(super) queries: usize,
}

impl<T: Narrow> AttentionGradShape<T>
where
    T::Acc: Score,
{
    /// Cuts scratch into the parts of a task of so many queries and keys.
    pub(super) fn buffers<'a>(
        &self,
        [queries, keys]: [usize; 2],
        scratch: &'a mut Scratch,
    ) -> AttentionGradScratch<'a, T::Acc> {
        let (kernel, acc) = (self.kernel, size_of::<T::Acc>());
        let (group, block, depth, values) = (self.group, self.block, self.depth, self.values);
        let direct = kernel.takes_sums();
        let only_if = |wanted: bool, bytes: usize| if wanted { bytes } else { 0 };
        let matrix = block * group;
        let placed = scratch.place(ScratchParts::new([
            ("queries", kernel.b_bytes(group, depth)),
            ("slopes of outputs", kernel.b_bytes(group, values)),
            ("rows of queries", kernel.b_bytes(depth, group)),
            ("rows of slopes of outputs", kernel.b_bytes(values, group)),
            ("keys", self.blocks * kernel.a_bytes(block, depth)),
            ("values", self.blocks * kernel.a_bytes(block, values)),
            ("columns of keys", self.blocks * kernel.a_bytes(depth, block)),
            ("scores", matrix * acc),
            ("slopes", matrix * acc),
            ("rounded", only_if(!direct, matrix * size_of::<T>())),
            ("packed weights", only_if(!direct, kernel.a_bytes(block, group))),
            ("packed slopes", only_if(!direct, kernel.b_bytes(group, block))),
            ("log-sum-exps", group * acc),
            ("deltas", group * acc),
            ("gradients of queries", queries.next_multiple_of(group) * depth * acc),
            ("gradients of keys", keys * depth * acc),
            ("gradients of values", keys * values * acc),
            ("rows of gradients of queries", group * depth * acc),
            ("slopes of scores", only_if(self.functions.has_score(), matrix * acc)),
            ("visibility", only_if(self.functions.has_mask(), matrix)),
            ("score and mask functions", self.functions.scratch_bytes()),
            ("weights that stay", only_if(self.dropping.is_some(), matrix * acc)),
        ]));
        let at = placed.starts;
        // Lanes beyond the queries are computed too, and numbers that nobody wrote may be slow.
        // SAFETY: the parts have the elements.
        unsafe {
            at[7].cast::<T::Acc>().write_bytes(0, matrix);
            at[8].cast::<T::Acc>().write_bytes(0, matrix);
        }
        AttentionGradScratch {
            group: [at[0], at[1], at[2], at[3]],
            tile: [at[4], at[5], at[6]],
            scores: at[7].cast(),
            slopes: at[8].cast(),
            rounded: at[9],
            packed: at[10],
            packed_slopes: at[11],
            rows: [at[12].cast(), at[13].cast()],
            dq: at[14].cast(),
            dk: at[15].cast(),
            dv: at[16].cast(),
            turned: at[17].cast(),
            steep: at[18].cast(),
            visible: at[19],
            functions: at[20],
            kept: at[21].cast(),
            _placed: placed,
        }
    }

    /// Packs block `number` of a tile: `keys` keys from `first` on.
    ///
    /// # Safety
    /// The rows can be read; the buffers are this shape's.
    pub(super) unsafe fn pack_keys(
        &self,
        [k, v]: [HeadRows<T>; 2],
        (number, first, keys): (usize, usize, usize),
        buffers: &AttentionGradScratch<'_, T::Acc>,
    ) {
        let [left, values, columns] = self.block_of(number, buffers);
        // SAFETY: as the caller promised.
        unsafe {
            self.kernel.pack_a(k.lines(first, keys, self.depth), left);
            self.kernel.pack_a(v.lines(first, keys, self.values), values);
            self.kernel.pack_a(k.columns(first, keys, self.depth), columns);
        }
    }

    /// Packs a group: `queries` queries from `first` on.
    ///
    /// # Safety
    /// As for [`pack_keys`](Self::pack_keys).
    pub(super) unsafe fn pack_queries(
        &self,
        [q, dout]: [HeadRows<T>; 2],
        [first, queries]: [usize; 2],
        buffers: &AttentionGradScratch<'_, T::Acc>,
    ) {
        let [columns, dcolumns, rows, drows] = buffers.group;
        // SAFETY: as the caller promised.
        unsafe {
            self.kernel.pack_b_block(q.lines(first, queries, self.depth), columns);
            self.kernel.pack_b_block(dout.lines(first, queries, self.values), dcolumns);
            self.kernel.pack_b_block(q.columns(first, queries, self.depth), rows);
            self.kernel.pack_b_block(dout.columns(first, queries, self.values), drows);
        }
    }

    fn block_of(&self, number: usize, buffers: &AttentionGradScratch<'_, T::Acc>) -> [*mut u8; 3] {
        let (kernel, block) = (self.kernel, self.block);
        let bytes = [
            kernel.a_bytes(block, self.depth),
            kernel.a_bytes(block, self.values),
            kernel.a_bytes(self.depth, block),
        ];
        std::array::from_fn(|i| buffers.tile[i].wrapping_add(number * bytes[i]))
    }

    /// Adds the contribution of a block to the gradients `[dq, dk, dv]` of its queries and keys.
    ///
    /// # Safety
    /// The block and its group are packed, and its rows of numbers are filled. The gradients have
    /// its queries and keys. The slots hold what the functions read.
    pub(super) unsafe fn block(
        &self,
        (buffers, slots): (&AttentionGradScratch<'_, T::Acc>, &SlotTable),
        (at, block): (Position, KeyBlock),
        [dq, dk, dv]: [*mut T::Acc; 3],
        wanted: Wanted,
    ) {
        let (kernel, stride, KeyBlock { keys, seen, queries, .. }) =
            (self.kernel, self.group, block);
        let width = queries.next_multiple_of(kernel.tile()[1]);
        let [left, values, columns] =
            self.block_of(block.number, buffers).map(<*mut u8>::cast_const);
        let [right, dright, rows, drows] = buffers.group.map(<*mut u8>::cast_const);
        let (scores, slopes) = (buffers.scores, buffers.slopes);
        let product = |a, b, c, k| BlockProduct {
            a,
            b,
            c,
            c_stride: stride,
            rows: seen,
            cols: width,
            k,
            accumulate: false,
        };
        // SAFETY: as the caller promised; each part has its room.
        unsafe {
            let lanes = seen * stride;
            let visible = if self.functions.has_mask() { lanes } else { 0 };
            let visible = std::slice::from_raw_parts_mut(buffers.visible, visible);
            let visibility = self.functions.visible(visible, at, slots, buffers.functions);
            if visibility == Visible::None {
                return;
            }
            kernel.multiply_block(product(left, right, scores, self.depth));
            let scored = std::slice::from_raw_parts_mut(scores, lanes);
            self.functions.score((scored, buffers.steep), at, slots, buffers.functions);
            let hidden = if self.factor < 0.0 { T::Acc::HIGHEST } else { T::Acc::LOWEST };
            if visibility == Visible::Some {
                let (src, hidden) = (visible.as_ptr(), std::ptr::from_ref(&hidden).cast());
                let src = [src, hidden, src];
                let operands =
                    Operands { dst: scores.cast(), src, immediate: 0, ahead: Ahead::NONE };
                (self.hide)(lanes, &operands);
            }
            let extent = ScoreExtent { seen, width: queries, stride };
            self.reach.hide((scores, extent), [at[2] as usize, at[3] as usize], hidden);
            kernel.multiply_block(product(values, dright, slopes, self.values));
            let kept = Kept { factors: buffers.kept, rows: seen, stride };
            if let Some(dropping) = &self.dropping {
                dropping.draw(kept, at, slots);
                dropping.apply(slopes, kept);
            }
            let weighed = Weighed {
                scores,
                slopes,
                shift: buffers.rows[0].cast_const(),
                delta: buffers.rows[1].cast_const(),
                factor: T::Acc::from_f64(self.factor),
                stride,
                queries: width,
            };
            let source = std::ptr::from_ref(&weighed).cast::<u8>();
            let weigh = match self.functions.has_score() {
                true => self.weigh.unscaled,
                false => self.weigh.scaled,
            };
            let dst = std::ptr::null_mut();
            weigh(seen, &Operands { dst, src: [source; 3], immediate: 0, ahead: Ahead::NONE });
            if self.functions.has_score() {
                let src = [buffers.steep.cast_const().cast(); 3];
                let operands =
                    Operands { dst: slopes.cast(), src, immediate: 0, ahead: Ahead::NONE };
                (self.steepen)(lanes, &operands);
            }
            // Slopes are of all weights, values of those that stay.
            if let Some(dropping) = &self.dropping {
                dropping.apply(scores, kept);
            }
            if wanted.queries {
                self.add_queries(buffers, (columns, dq), [keys, seen, width]);
            }
            if wanted.keys {
                for (sums, right, to, channels) in
                    [(scores, drows, dv, self.values), (slopes, rows, dk, self.depth)]
                {
                    let product = BlockProduct {
                        a: sums.cast_const().cast(),
                        b: right,
                        c: to,
                        c_stride: channels,
                        rows: seen,
                        cols: channels,
                        k: queries,
                        accumulate: true,
                    };
                    if kernel.takes_sums() {
                        kernel.multiply_lines(product, stride);
                    } else {
                        let a = self.packed(buffers, sums, [seen, queries]);
                        kernel.multiply_block(BlockProduct { a, ..product });
                    }
                }
            }
        }
    }

    /// Adds the products of keys and slopes to dq.
    unsafe fn add_queries(
        &self,
        buffers: &AttentionGradScratch<'_, T::Acc>,
        (columns, dq): (*const u8, *mut T::Acc),
        [keys, seen, width]: [usize; 3],
    ) {
        let (kernel, stride) = (self.kernel, self.group);
        let rows = kernel.tile()[0];
        let direct = kernel.takes_sums();
        // SAFETY: as the caller promised.
        unsafe {
            let b = if direct {
                buffers.slopes.cast_const().cast()
            } else {
                self.round(buffers, buffers.slopes, [seen, width]);
                let from = buffers.rounded.cast_const().cast::<T>();
                let lines =
                    OperandLines { from, lines: width, line_stride: 1, k: seen, k_stride: stride };
                kernel.pack_b_block(lines, buffers.packed_slopes);
                buffers.packed_slopes.cast_const()
            };
            // Panel by panel, because panels are as long as the block, but only a prefix of it is
            // seen.
            for channel in (0..self.depth).step_by(rows) {
                let product = BlockProduct {
                    a: columns.add(kernel.a_bytes(channel, keys)),
                    b,
                    c: dq.add(channel * stride),
                    c_stride: stride,
                    rows: (self.depth - channel).min(rows),
                    cols: width,
                    k: seen,
                    accumulate: true,
                };
                match direct {
                    true => kernel.multiply_rows(product, stride),
                    false => kernel.multiply_block(product),
                }
            }
        }
    }

    /// Weights or slopes as a left operand: rows of keys over queries.
    unsafe fn packed(
        &self,
        buffers: &AttentionGradScratch<'_, T::Acc>,
        sums: *mut T::Acc,
        [seen, queries]: [usize; 2],
    ) -> *const u8 {
        // SAFETY: as the caller promised.
        unsafe {
            self.round(buffers, sums, [seen, queries]);
            let (from, line_stride) = (buffers.rounded.cast_const().cast::<T>(), self.group);
            let lines = OperandLines { from, lines: seen, line_stride, k: queries, k_stride: 1 };
            self.kernel.pack_a(lines, buffers.packed);
        }
        buffers.packed.cast_const()
    }

    /// Rounds a block to the format of operands.
    unsafe fn round(
        &self,
        buffers: &AttentionGradScratch<'_, T::Acc>,
        sums: *mut T::Acc,
        [rows, width]: [usize; 2],
    ) {
        for row in 0..rows {
            // SAFETY: as the caller promised.
            unsafe {
                let from = std::slice::from_raw_parts(sums.add(row * self.group), width);
                let to = buffers.rounded.cast::<T>().add(row * self.group);
                T::narrow(from, std::slice::from_raw_parts_mut(to, width));
            }
        }
    }
}
