//! Attention of few queries: the next token of a decoder, or several that are verified together.
//!
//! A tile has a panel of queries, of which these would fill a column or two, and packs its keys.
//! Here products are dot products with rows as they lie (`row_passes`), which are read once for all
//! queries that share them. Codes are widened in registers; no row is stored as numbers. Rows in
//! pages are read there. Invariant: beyond operands and results memory is O(block), whatever the
//! length.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

use overdrive_ir::Plan;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::plan::{KernelCall, KernelOp};

use super::function::Functions;
use super::reach::Reach;
use super::results::{element, store};
use super::row_passes::{RowPasses, Rows, Weighing};
use super::translator::ScoreBlockShape;
use super::visible::{Visible, mask_cell};
use crate::exec::{Runnable, Unsupported};
use crate::gemm::{Element, Narrow, Widen};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{Pool, ScratchParts, Worker};

/// Queries of a sequence that are few: of six, tiles are as fast (`cargo bench --bench attention --
/// 1 few`, AVX-512, 512 to 16,384 keys).
pub(super) const FEW: usize = 5;
/// Keys of a block: their codes, of 128 channels, fill the first-level cache.
const BLOCK: usize = 256;
/// Queries that share the keys of a task, at most.
const TOGETHER: usize = 16;
/// Tasks for each worker, so that none waits long for the last.
const TASKS: usize = 2;

/// Compiled attention of few queries; they and the results are of `T`.
#[derive(Debug)]
pub(super) struct FewQueries<T> {
    q: Strided,
    /// k and v, each with its scales where it has codes.
    rows: [(Strided, Option<Strided>); 2],
    pages: Option<Pages>,
    out: Option<Strided>,
    lse: Option<Strided>,
    reach: Reach,
    /// Query heads that share a key head.
    group: usize,
    functions: Functions,
    /// Factor that turns scores into exponents of 2.
    factor: f32,
    passes: RowPasses,
    number: std::marker::PhantomData<T>,
}

/// Attention as a call over keys and values in order, with what says how they lie.
pub(super) struct Kept {
    pub(super) call: KernelCall,
    /// Whether the scales of k and v follow v.
    pub(super) has_scales: bool,
    /// If k, v and their scales are pools: the first stride of each is that of pages.
    pub(super) pages: Option<Pages>,
}

/// The pages of sequences in a pool.
#[derive(Debug)]
pub(super) struct Pages {
    /// Numbers of pages `[B, n]`.
    pub(super) numbers: Strided,
    /// Pages of the pool.
    pub(super) pool: usize,
    /// Tokens of a page.
    pub(super) size: usize,
}

impl Pages {
    /// The page of a sequence that a key is in.
    fn page(&self, [sequence, key]: [usize; 2], slots: &SlotTable) -> usize {
        // SAFETY: the sequence has a page for each of its keys.
        let number: i32 = unsafe { *element(&self.numbers, [sequence, key / self.size], slots) };
        (number.max(0) as usize).min(self.pool - 1)
    }
}

/// Keys of a block whose rows follow each other: their places in it, and the rows of k and v.
struct Run {
    places: Range<usize>,
    rows: [Rows; 2],
}

/// Queries of one sequence that share a key head: a part of all that do.
struct Shared {
    batch: usize,
    head: usize,
    first: usize,
    count: usize,
}

/// Whether this attention has few queries, over rows whose channels are neighbours.
pub(super) fn are_few(attention: &Attention, call: &KernelCall) -> bool {
    let views = &call.operands[..3];
    attention.dropout.is_none()
        && attention.threshold.is_none()
        && views[0].ty.sizes()[2] <= FEW
        && views.iter().all(|view| view.strides[3] == 1)
}

impl<T: Narrow + Widen<f32> + Element<Acc = f32>> FewQueries<T> {
    pub(super) fn new(plan: &Plan, kept: Kept, attention: &Attention) -> Result<Self, Unsupported> {
        let Kept { call, has_scales, pages } = kept;
        let [q, k, v] = [0, 1, 2].map(|i| Strided::new(&call.operands[i]));
        let scales = [3, 4].map(|i| has_scales.then(|| Strided::new(&call.operands[i])));
        let captures = &call.operands[if has_scales { 5 } else { 3 }..];
        let KernelOp::Composite(_, regions) = &call.op else {
            unreachable!("attention is a composite")
        };
        let scale = attention.factor(q.sizes[3]);
        let functions = Functions::new(
            plan,
            (regions, captures),
            ScoreBlockShape {
                rows: BLOCK,
                stride: 1,
                cell: mask_cell(regions, captures)?,
                extents: [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]],
            },
            scale,
        )?;
        let factor = if functions.has_score() { LOG2_E } else { scale * LOG2_E };
        let passes = RowPasses::of(k.dtype)
            .ok_or_else(|| Unsupported::new(format!("no kernel reads rows of {}", k.dtype)))?;
        let [out, lse] = [0, 1].map(|i| call.results[i].as_ref().map(Strided::new));
        let reach =
            Reach { queries: q.sizes[2], keys: k.sizes[2], causal: attention.mask == Mask::Causal };
        let group = q.sizes[1] / k.sizes[1].max(1);
        let [k_scale, v_scale] = scales;
        let rows = [(k, k_scale), (v, v_scale)];
        let (factor, number) = (factor as f32, std::marker::PhantomData);
        Ok(Self { q, rows, pages, out, lse, reach, group, functions, factor, passes, number })
    }

    /// Rows of k (0) or v (1) of a key head: of a sequence, or of a page.
    fn rows(&self, which: usize, [b, head]: [usize; 2], slots: &SlotTable) -> Rows {
        let at = |place: &Strided| {
            let offset = b as i64 * place.strides[0] + head as i64 * place.strides[1];
            place.get(slots).wrapping_offset(offset as isize * place.width() as isize)
        };
        let (numbers, scales) = &self.rows[which];
        Rows {
            start: at(numbers),
            row: numbers.strides[2] as usize * numbers.width(),
            channels: numbers.sizes[3],
            scales: scales.as_ref().map(|scales| at(scales).cast_const().cast()),
            scale_row: scales.as_ref().map_or(0, |scales| scales.strides[2] as usize),
        }
    }

    /// Appends the runs of a block of keys.
    fn find(
        &self,
        [b, head]: [usize; 2],
        block: Range<usize>,
        (runs, slots): (&mut Vec<Run>, &SlotTable),
    ) {
        let mut key = block.start;
        while key < block.end {
            let (matrix, row, end) = match &self.pages {
                None => ([b, head], key, block.end),
                Some(pages) => {
                    let row = key % pages.size;
                    let end = (key - row + pages.size).min(block.end);
                    ([pages.page([b, key], slots), head], row, end)
                }
            };
            let rows = [0, 1].map(|which| self.rows(which, matrix, slots).from(row));
            runs.push(Run { places: key - block.start..end - block.start, rows });
            key = end;
        }
    }

    fn task(&self, shared: &Shared, worker: &mut Worker<'_>, slots: &SlotTable) {
        let &Shared { batch: b, head, first, count } = shared;
        let [keys, values] = [0, 1].map(|which| self.rows[which].0.sizes[3]);
        let placed = worker.scratch.place(ScratchParts::new([
            ("queries", 4 * count * keys),
            ("outputs", 4 * count * values),
            ("scores", 4 * BLOCK),
            ("visibility", if self.functions.has_mask() { BLOCK } else { 0 }),
            ("score and mask functions", self.functions.scratch_bytes()),
        ]));
        let [queries, sums, scores, visible, functions] = placed.starts;
        let [queries, sums, scores] = [queries, sums, scores].map(<*mut u8>::cast::<f32>);
        let all = first..first + count;
        let place =
            |at: usize| [b, head * self.group + at / self.reach.queries, at % self.reach.queries];
        let mut states: [Weighing; TOGETHER] = std::array::from_fn(|_| Weighing::new(self.factor));
        // SAFETY: each part has its room, on a 64-byte boundary, and is this task's. The slots hold
        // q, k, v and their scales. They have as many rows and channels as their views say. q and
        // the results have the queries.
        unsafe {
            let queries = std::slice::from_raw_parts_mut(queries, count * keys);
            let sums = std::slice::from_raw_parts_mut(sums, count * values);
            sums.fill(0.0);
            for (at, query) in all.clone().zip(queries.chunks_exact_mut(keys.max(1))) {
                let from = element::<T>(&self.q, place(at), slots);
                T::widen(std::slice::from_raw_parts(from, query.len()), query);
            }
            let last = all.clone().map(|at| self.reach.visible(place(at)[2] + 1)).max();
            let (last, mut runs) = (last.unwrap_or(0), vec![]);
            for key in (0..last).step_by(BLOCK) {
                runs.clear();
                self.find([b, head], key..last.min(key + BLOCK), (&mut runs, slots));
                for at in all.clone() {
                    let (one, [b, h, i]) = (at - first, place(at));
                    let seen = self.reach.visible(i + 1).saturating_sub(key).min(BLOCK);
                    if seen == 0 {
                        continue;
                    }
                    let position = [b, h, i, key].map(|index| index as i32);
                    let scores = std::slice::from_raw_parts_mut(scores, seen);
                    let lanes = if self.functions.has_mask() { seen } else { 0 };
                    let visible = std::slice::from_raw_parts_mut(visible, lanes);
                    let visibility = self.functions.visible(visible, position, slots, functions);
                    if visibility == Visible::None {
                        continue;
                    }
                    let query = &queries[one * keys..][..keys];
                    let sums = &mut sums[one * values..][..values];
                    let runs = || {
                        let some = runs.iter().take_while(|run| run.places.start < seen);
                        some.map(|run| (run.places.start..run.places.end.min(seen), run.rows))
                    };
                    for (places, [keys, _]) in runs() {
                        self.passes.products(&keys, query, &mut scores[places]);
                    }
                    let written = (&mut *scores, std::ptr::null_mut());
                    self.functions.score(written, position, slots, functions);
                    let visible = (visibility == Visible::Some).then_some(&*visible);
                    let weighing = &mut states[one];
                    self.passes.weigh(weighing, scores, visible);
                    let mut shrink = weighing.shrink;
                    for (places, [_, values]) in runs() {
                        let weights = &mut scores[places];
                        values.scale_each(weights);
                        self.passes.sum(&values, (weights, shrink), sums);
                        shrink = 1.0;
                    }
                }
            }
            for (at, weighing) in all.zip(&states) {
                let sums = &mut sums[(at - first) * values..][..values];
                let inverse = if weighing.sum == 0.0 { 0.0 } else { weighing.sum.recip() };
                if let Some(lse) = &self.lse {
                    *element(lse, place(at), slots) = if weighing.sum == 0.0 {
                        f32::NEG_INFINITY
                    } else {
                        (weighing.max + weighing.sum.log2()) * LN_2 as f32
                    };
                }
                if let Some(out) = &self.out {
                    sums.iter_mut().for_each(|sum| *sum *= inverse);
                    store::<T>(sums, element(out, place(at), slots), out.strides[3]);
                }
            }
        }
    }
}

impl<T: Narrow + Widen<f32> + Element<Acc = f32>> Runnable for FewQueries<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let (batch, heads) = (self.q.sizes[0], self.rows[0].0.sizes[1]);
        let all = self.group * self.reach.queries;
        // With few heads their queries are dealt to more workers, which then read the same keys.
        let parts = (TASKS * pool.threads()).div_ceil((batch * heads).max(1));
        let together = all.div_ceil(parts.max(1)).clamp(1, TOGETHER);
        let parts = all.div_ceil(together);
        pool.run(batch * heads * parts, |task, worker| {
            let (matrix, first) = (task / parts, task % parts * together);
            let count = together.min(all - first);
            let shared = Shared { batch: matrix / heads, head: matrix % heads, first, count };
            self.task(&shared, worker, slots);
        });
    }
}
