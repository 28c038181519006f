//! One block of the gradients: some keys against some queries of a head.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use super::captures::SlopedBlock;
use super::dropout::Kept;
use super::function::Position;
use super::grad_shape::{AttentionGradScratch, AttentionGradShape};
use super::head_rows::HeadRows;
use super::reach::ScoreExtent;
use super::softmax::Score;
use super::visible::Visible;
use super::weigh::Weighed;
use crate::gemm::{BlockProduct, Narrow, OperandLines};
use crate::loops::isa::{Ahead, Operands};
use crate::slots::SlotTable;

/// The gradients that a task sums up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) queries: bool,
    pub(super) keys: bool,
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
    T::Acc: Score + Into<f64>,
{
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
        // SAFETY: the rows of these keys can be read, and the block's place in the tile
        // (`block_of`) has room for a whole block.
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
        // SAFETY: the rows of these queries can be read, and each part of the group has room for
        // `group` of them.
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
        let [right, dright, ..] = buffers.group.map(<*mut u8>::cast_const);
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
        // SAFETY: block and group are packed. Scores and slopes have room for a block by a group.
        // Only `seen` by `width` of it are touched. dq, dk and dv are the caller's alone.
        unsafe {
            let scored = product(left, right, scores, self.depth);
            if self.score((buffers, slots), (at, block), scored) == Visible::None {
                return;
            }
            kernel.multiply_block(product(values, dright, slopes, self.values));
            let kept = Kept { factors: buffers.kept, rows: seen, stride };
            if let Some(dropping) = &self.dropping {
                dropping.draw(kept, at, slots);
                dropping.apply(slopes, kept);
            }
            self.weigh(buffers, [seen, width]);
            if let (Some(captures), false) = (&self.captures, buffers.table.is_null()) {
                let block =
                    SlopedBlock { slopes: slopes.cast_const(), rows: seen, queries, stride };
                let terms = (buffers.terms.cast_const(), self.block * stride);
                captures.add(block, terms, buffers.table);
                return;
            }
            self.steepen(buffers, seen);
            // Slopes are of all weights, values of those that stay.
            if let Some(dropping) = &self.dropping {
                dropping.apply(scores, kept);
            }
            if wanted.queries {
                self.add_queries(buffers, (columns, dq), [keys, seen, width]);
            }
            if wanted.keys {
                self.add_keys(buffers, [dk, dv], [seen, queries]);
            }
        }
    }

    /// Scores of the keys by the queries of a block, after the functions, hidden ones at the end of
    /// the range. If no key is visible, no score is computed.
    ///
    /// # Safety
    /// As for [`block`](Self::block).
    unsafe fn score(
        &self,
        (buffers, slots): (&AttentionGradScratch<'_, T::Acc>, &SlotTable),
        (at, block): (Position, KeyBlock),
        product: BlockProduct<T::Acc>,
    ) -> Visible {
        let (scores, stride, KeyBlock { seen, queries, .. }) = (buffers.scores, self.group, block);
        let lanes = seen * stride;
        let visible = if self.functions.has_mask() { lanes } else { 0 };
        // SAFETY: visibility and scores have room for a block by a group, at least `lanes`. The
        // slots hold what the functions read.
        unsafe {
            let visible = std::slice::from_raw_parts_mut(buffers.visible, visible);
            let visibility = self.functions.visible(visible, at, slots, buffers.functions);
            if visibility == Visible::None {
                return visibility;
            }
            self.kernel.multiply_block(product);
            let scored = std::slice::from_raw_parts_mut(scores, lanes);
            let functions = match &self.captures {
                Some(captures) if !buffers.table.is_null() => &captures.functions,
                _ => &self.functions,
            };
            let places = (scored, buffers.steep, buffers.terms);
            functions.score_with_terms(places, at, slots, buffers.functions);
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
            visibility
        }
    }

    /// Turns scores into weights, and slopes of weights into those of what the score function gave.
    ///
    /// # Safety
    /// Scores and slopes have `seen` rows of `width` queries, whose numbers are there.
    unsafe fn weigh(&self, buffers: &AttentionGradScratch<'_, T::Acc>, [seen, width]: [usize; 2]) {
        let weighed = Weighed {
            scores: buffers.scores,
            slopes: buffers.slopes,
            shift: buffers.rows[0].cast_const(),
            delta: buffers.rows[1].cast_const(),
            factor: T::Acc::from_f64(self.factor),
            stride: self.group,
            queries: width,
        };
        let source = std::ptr::from_ref(&weighed).cast::<u8>();
        let weigh = match self.functions.has_score() {
            true => self.weigh.unscaled,
            false => self.weigh.scaled,
        };
        let dst = std::ptr::null_mut();
        // SAFETY: scores and slopes have `seen` rows of `stride` lanes.
        unsafe {
            weigh(seen, &Operands { dst, src: [source; 3], immediate: 0, ahead: Ahead::NONE })
        }
    }

    /// Turns these slopes into those of the products, where there is a score function.
    ///
    /// # Safety
    /// Slopes have `seen` rows, and so has what the score function wrote of its own.
    unsafe fn steepen(&self, buffers: &AttentionGradScratch<'_, T::Acc>, seen: usize) {
        if self.functions.has_score() {
            let src = [buffers.steep.cast_const().cast(); 3];
            let dst = buffers.slopes.cast();
            let operands = Operands { dst, src, immediate: 0, ahead: Ahead::NONE };
            // SAFETY: both have `seen` rows of `stride` lanes.
            unsafe { (self.steepen)(seen * self.group, &operands) }
        }
    }

    /// Adds the products of weights and slopes of outputs to dv, and those of slopes and queries to
    /// dk.
    ///
    /// # Safety
    /// As for [`block`](Self::block), whose weights and slopes are there.
    unsafe fn add_keys(
        &self,
        buffers: &AttentionGradScratch<'_, T::Acc>,
        [dk, dv]: [*mut T::Acc; 2],
        [seen, queries]: [usize; 2],
    ) {
        let kernel = self.kernel;
        let [_, _, rows, drows] = buffers.group.map(<*mut u8>::cast_const);
        for (sums, right, to, channels) in
            [(buffers.scores, drows, dv, self.values), (buffers.slopes, rows, dk, self.depth)]
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
            // SAFETY: `sums` are `seen` rows of `queries`, the group is packed, and `to` has a row
            // of `channels` for each key that is seen.
            unsafe {
                if kernel.takes_sums() {
                    kernel.multiply_lines(product, self.group);
                } else {
                    let a = self.packed(buffers, sums, [seen, queries]);
                    kernel.multiply_block(BlockProduct { a, ..product });
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
        // SAFETY: `columns` are the block's packed keys, slopes have `seen` rows of `width`, and dq
        // has `depth` rows of `stride`.
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
        // SAFETY: `sums` are `seen` rows of `queries`, and `packed` has room for a block by a
        // group.
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
            // SAFETY: `sums` and `rounded` have `group` elements a row, at least `width`.
            unsafe {
                let from = std::slice::from_raw_parts(sums.add(row * self.group), width);
                let to = buffers.rounded.cast::<T>().add(row * self.group);
                T::narrow(from, std::slice::from_raw_parts_mut(to, width));
            }
        }
    }
}
