//! `attention_grad`, a block at a time: weights are computed again from the log-sum-exp, for some
//! keys and some queries, and never exist as a whole.
//!
//! A task walks over tiles of keys and groups of queries of a head. For each block it computes
//! `Sᵀ = K Qᵀ` and `dPᵀ = V dOᵀ`, and turns them into weights and slopes of scores (`weigh`). Then
//! it adds `Kᵀ dSᵀ` to dq, `dSᵀ Q` to dk and `Pᵀ dO` to dv. If there are enough heads for the
//! threads, a task is a head, and a block is computed once. Otherwise tasks of tiles of keys sum dk
//! and dv, and tasks of tiles of queries dq. Both add up in the same order. Source: Dao et al.,
//! "FlashAttention", arXiv:2205.14135, algorithm 4. Invariant: results do not depend on the number
//! of threads. Each thread needs O(T) memory beyond operands and results.
//!
//! Long because the products of a block and what becomes of them are read together.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use half::{bf16, f16};
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::ops::attention::{Mask, find_score};
use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::plan::{KernelCall, KernelOp};
use overdrive_ir::{DType, Decline, Graph, OpRef, Plan};

use super::captures::{CaptureFunctions, CaptureSums, element_slopes};
use super::dropout::Dropping;
use super::function::Functions;
use super::grad_shape::{AttentionGradScratch, AttentionGradShape};
use super::grad_task::{KeyBlock, Wanted};
use super::head_rows::HeadRows;
use super::reach::{Reach, block_of};
use super::results::{element, store};
use super::slope::with_slope;
use super::softmax::{Score, passes};
use super::translator::ScoreBlockShape;
use super::visible::mask_cell;
use super::weigh::{steepen, weigh};
use crate::exec::{Format, Runnable, Unsupported};
use crate::gemm::{Element, MicroKernel, Narrow, OperandLines, transpose};
use crate::kernels::named::{Compile, NamedKernel};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{Pool, Worker};

/// Panels of queries of a group. Their number is odd, so that rows of scores share no sets of the
/// first-level cache.
const PANELS: usize = 5;
/// Keys of a block, about: with a group of queries they fill half of the second-level cache.
const BLOCK: usize = 128;
/// Blocks of a tile: enough that packing a group of queries is a few percent.
const BLOCKS: usize = 4;
/// Groups of queries of a task that sums up dq alone.
const GROUPS: usize = 6;

/// `attention_grad` with dropout, a mask function and a score function.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    regions: declines,
    ..NamedKernel::new("attention_grad", Compile::Composite(compile))
};

fn declines(regions: &[Graph], wanted: &[bool]) -> Option<Decline> {
    let score = find_score(regions)?;
    let captures = score.inputs()[5..].iter().map(|port| score.ty(port.value));
    let floats = captures.filter(|ty| ty.dtype.is_float());
    let of_wanted = floats.zip(wanted.iter().skip(3)).filter(|(_, wanted)| **wanted);
    // Elements are counted in i32.
    if let Some((ty, _)) = of_wanted.into_iter().find(|(ty, _)| ty.elements() > i32::MAX as usize) {
        let reason = format!("its kernel sums gradients of at most 2^31 floats, not of {ty}");
        return Some(Decline::Because(reason));
    }
    let refused = with_slope(score).err()?;
    Some(Decline::Because(format!("its kernel takes {}, not {}", refused.expected, refused.found)))
}

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let views = call.operands.iter().chain(call.results.iter().flatten());
    if views.flat_map(|view| &view.strides).any(|&stride| stride < 0) {
        return Err(Unsupported::new("attention over views that run backwards has no kernel"));
    }
    let op = op.downcast::<AttentionGrad>().expect("the table is by name");
    Ok(match call.operands[0].ty.dtype {
        DType::F64 => Box::new(CompiledAttentionGrad::<f64>::new(plan, call, op)?),
        DType::F32 => Box::new(CompiledAttentionGrad::<f32>::new(plan, call, op)?),
        DType::F16 => Box::new(CompiledAttentionGrad::<f16>::new(plan, call, op)?),
        DType::BF16 => Box::new(CompiledAttentionGrad::<bf16>::new(plan, call, op)?),
        other => return Err(Unsupported::new(format!("there is no attention of {other}"))),
    })
}

/// Compiled gradients.
#[derive(Debug)]
struct CompiledAttentionGrad<T: Element> {
    /// q, k, v, lse, dout, delta.
    operands: [Strided; 6],
    /// dq, dk, dv.
    results: [Option<Strided>; 3],
    shape: AttentionGradShape<T>,
    scale: f64,
    /// Query heads that share a key head.
    sharing: usize,
    /// The captures whose gradients are wanted.
    captures: Option<CaptureSums>,
}

/// The work of a task.
#[derive(Clone, Debug)]
struct AttentionGradWork {
    batch: usize,
    key_head: usize,
    heads: Range<usize>,
    queries: Range<usize>,
    keys: Range<usize>,
    wanted: Wanted,
}

impl<T: Format + Narrow> CompiledAttentionGrad<T>
where
    T::Acc: Score + Into<f64>,
{
    fn new(plan: &Plan, call: &KernelCall, op: &AttentionGrad) -> Result<Self, Unsupported> {
        let operands: [Strided; 6] = std::array::from_fn(|i| Strided::new(&call.operands[i]));
        let [q, k, v, ..] = &operands;
        let kernel = MicroKernel::<T>::best();
        let [rows, width] = kernel.tile();
        let KernelOp::Composite(_, regions) = &call.op else {
            unreachable!("attention_grad is a composite")
        };
        let group = q.sizes[2].clamp(1, PANELS * width).next_multiple_of(width);
        let scale = op.attention.factor(q.sizes[3]);
        let extents = [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]];
        let scored = |region: &Graph| match find_score(std::slice::from_ref(region)) {
            Some(score) => with_slope(score),
            None => Ok(region.clone()),
        };
        let whole = regions.as_slice();
        let regions: Result<Vec<Graph>, _> = regions.iter().map(scored).collect();
        let regions = regions.expect("functions without slopes are declined");
        let (seed, captures) = op.attention.seed_and_captures(&call.operands[6..]);
        let cell = mask_cell(&regions, captures)?;
        let block = block_of(k.sizes[2], BLOCK, (rows, cell[1]));
        let form = ScoreBlockShape { rows: block, stride: group, cell, extents };
        let functions = Functions::new(plan, (&regions, captures), form, scale)?;
        let score = find_score(whole);
        let (sums, of_captures) = match CaptureSums::new((score, captures), &call.results[3..]) {
            Some((sums, firsts)) => {
                let slopes = score.map(Slopes::of).transpose();
                let slopes = slopes.expect("functions without slopes are declined");
                let slopes = slopes.expect("gradients of captures are those of a score function");
                let wanted: Vec<bool> = firsts.iter().map(Option::is_some).collect();
                let reads = element_slopes(&slopes, &wanted);
                let regions = std::slice::from_ref(&slopes.region);
                let of = (regions, captures);
                let functions = Functions::with_slopes(plan, of, form, (scale, &reads))?;
                let sums = sums.apart(functions.apart());
                let firsts = reads.iter().filter_map(|read| firsts[read.capture]).collect();
                (Some(sums), Some(CaptureFunctions { functions, firsts }))
            }
            None => (None, None),
        };
        let factor = if functions.has_score() { LOG2_E } else { scale * LOG2_E };
        let shape = AttentionGradShape {
            kernel,
            weigh: weigh::<T::Acc>(width),
            hide: passes::<T::Acc>(width).hide,
            steepen: steepen::<T::Acc>(),
            reach: Reach {
                queries: q.sizes[2],
                keys: k.sizes[2],
                causal: op.attention.mask == Mask::Causal,
            },
            functions,
            captures: of_captures,
            dropping: Dropping::new::<T::Acc>(op.attention.dropout, seed, extents),
            depth: q.sizes[3],
            values: v.sizes[3],
            factor: if factor == 0.0 { f64::from(f32::MIN_POSITIVE) } else { factor },
            group,
            block,
            blocks: BLOCKS,
        };
        let results = std::array::from_fn(|i| call.results[i].as_ref().map(Strided::new));
        let sharing = q.sizes[1] / k.sizes[1].max(1);
        Ok(Self { results, shape, scale, sharing, operands, captures: sums })
    }

    fn rows(&self, operand: usize, [b, h]: [usize; 2], slots: &SlotTable) -> HeadRows<T> {
        let place = &self.operands[operand];
        let (row, channel) = (place.strides[2] as usize, place.strides[3] as usize);
        let from = element::<T>(place, [b, h, 0], slots).cast_const();
        HeadRows { from, row, channel }
    }

    /// Runs a task; one with a table adds up the gradients of captures, and nothing else.
    fn task(
        &self,
        (work, table): (&AttentionGradWork, *mut f64),
        worker: &mut Worker<'_>,
        slots: &SlotTable,
    ) {
        let AttentionGradWork { batch, key_head, .. } = *work;
        let sizes = [work.queries.len(), work.keys.len()];
        let wanted = |wanted: bool, size: usize| if wanted { size } else { 0 };
        let sizes = [wanted(work.wanted.queries, sizes[0]), wanted(work.wanted.keys, sizes[1])];
        let mut buffers = self.shape.buffers(sizes, worker.scratch);
        buffers.table = table;
        let (depth, values) = (self.shape.depth, self.shape.values);
        // SAFETY: the parts have the elements; the slots hold their operands; results of tasks are
        // apart.
        unsafe {
            zero(buffers.dk, sizes[1] * depth);
            zero(buffers.dv, sizes[1] * values);
            for head in work.heads.clone() {
                zero(buffers.dq, sizes[0].next_multiple_of(self.shape.group) * depth);
                self.head(work, head, (&buffers, slots));
                if let (Some(place), true) = (&self.results[0], work.wanted.queries) {
                    self.store_queries(
                        [batch, head],
                        work.queries.clone(),
                        (&buffers, slots),
                        place,
                    );
                }
            }
            for (sums, result, channels, scale) in
                [(buffers.dk, 1, depth, self.scale), (buffers.dv, 2, values, 1.0)]
            {
                let Some(place) = self.results[result].as_ref().filter(|_| work.wanted.keys) else {
                    continue;
                };
                for (row, key) in work.keys.clone().enumerate() {
                    let row = std::slice::from_raw_parts_mut(sums.add(row * channels), channels);
                    store_scaled::<T>(row, scale, (place, [batch, key_head, key]), slots);
                }
            }
        }
    }

    /// The blocks of a head, tile by tile of keys.
    unsafe fn head(
        &self,
        work: &AttentionGradWork,
        head: usize,
        (buffers, slots): (&AttentionGradScratch<'_, T::Acc>, &SlotTable),
    ) {
        let (shape, matrix) = (&self.shape, [work.batch, head]);
        let shared = [work.batch, work.key_head];
        let [k, v] = [1, 2].map(|operand| self.rows(operand, shared, slots));
        let [q, dout] = [0, 4].map(|operand| self.rows(operand, matrix, slots));
        for tile in work.keys.clone().step_by(shape.block * shape.blocks) {
            let end = (tile + shape.block * shape.blocks).min(work.keys.end);
            for (number, first) in (tile..end).step_by(shape.block).enumerate() {
                let keys = (end - first).min(shape.block);
                // SAFETY: the keys are the work's, whose rows can be read, and `number` is a block
                // of the tile.
                unsafe { shape.pack_keys([k, v], (number, first, keys), buffers) };
            }
            for query in work.queries.clone().step_by(shape.group) {
                let queries = (work.queries.end - query).min(shape.group);
                let visible = shape.reach.visible(query + queries);
                if visible <= tile {
                    continue;
                }
                // SAFETY: the queries are the work's, whose rows and numbers can be read.
                unsafe {
                    shape.pack_queries([q, dout], [query, queries], buffers);
                    self.numbers(matrix, [query, queries], (buffers, slots));
                }
                for (number, first) in (tile..end.min(visible)).step_by(shape.block).enumerate() {
                    let keys = (end - first).min(shape.block);
                    let seen = keys.min(visible - first);
                    let at = [matrix[0], matrix[1], query, first].map(|i| i as i32);
                    let key = first - work.keys.start;
                    let sums = [
                        buffers.dq.wrapping_add((query - work.queries.start) * shape.depth),
                        buffers.dk.wrapping_add(key * shape.depth),
                        buffers.dv.wrapping_add(key * shape.values),
                    ];
                    let block = KeyBlock { number, keys, seen, queries };
                    // SAFETY: block and group are packed above, and the sums begin at the block's
                    // queries and keys.
                    unsafe { shape.block((buffers, slots), (at, block), sums, work.wanted) };
                }
            }
        }
    }

    /// The log-sum-exp and delta of the queries of a group. Missing queries get those of the last
    /// one.
    unsafe fn numbers(
        &self,
        [b, h]: [usize; 2],
        [first, queries]: [usize; 2],
        (buffers, slots): (&AttentionGradScratch<'_, T::Acc>, &SlotTable),
    ) {
        let factor = if self.shape.functions.has_score() { 1.0 } else { LOG2_E };
        for lane in 0..self.shape.group {
            let at = [b, h, first + lane.min(queries - 1)];
            // SAFETY: the operands have the query, as `lane` stays below their number; each row of
            // numbers has `group` lanes.
            unsafe {
                let [lse, delta] =
                    [3, 5].map(|i| *element::<T::Acc>(&self.operands[i], at, slots).cast_const());
                // A row that sees nothing: its scores are hidden, and any finite shift will do.
                let unseen = lse == T::Acc::LOWEST;
                let shift = if unseen { T::Acc::ZERO } else { lse.mul(T::Acc::from_f64(factor)) };
                *buffers.rows[0].add(lane) = shift;
                *buffers.rows[1].add(lane) = delta;
            }
        }
    }

    /// Stores the gradients of queries.
    unsafe fn store_queries(
        &self,
        [b, h]: [usize; 2],
        queries: Range<usize>,
        (buffers, slots): (&AttentionGradScratch<'_, T::Acc>, &SlotTable),
        place: &Strided,
    ) {
        let AttentionGradShape { depth, group, .. } = self.shape;
        for first in queries.clone().step_by(group) {
            let from = buffers.dq.wrapping_add((first - queries.start) * depth).cast_const();
            let lines =
                OperandLines { from, lines: depth, line_stride: group, k: group, k_stride: 1 };
            // SAFETY: the sums of a group are channel by query, and the part has room for them.
            unsafe { transpose(lines, buffers.turned) };
            for (row, query) in (first..(first + group).min(queries.end)).enumerate() {
                // SAFETY: the part has room for the rows, and the results have the query.
                unsafe {
                    let row =
                        std::slice::from_raw_parts_mut(buffers.turned.add(row * depth), depth);
                    store_scaled::<T>(row, self.scale, (place, [b, h, query]), slots);
                }
            }
        }
    }

    fn wanted(&self) -> Wanted {
        let [queries, keys, values] = self.results.each_ref().map(Option::is_some);
        Wanted { queries, keys: keys || values }
    }
}

/// Rounds a row times a number to where it belongs.
///
/// # Safety
/// The result has the row, which nobody else touches.
unsafe fn store_scaled<T: Narrow>(
    row: &mut [T::Acc],
    scale: f64,
    (place, at): (&Strided, [usize; 3]),
    slots: &SlotTable,
) where
    T::Acc: Score + Into<f64>,
{
    let scale = T::Acc::from_f64(scale);
    row.iter_mut().for_each(|x| *x = x.mul(scale));
    // SAFETY: the result has this row, which nobody else touches.
    unsafe { store::<T>(row, element(place, at, slots), place.strides[3]) }
}

/// # Safety
/// `from` has `len` elements.
unsafe fn zero<A>(from: *mut A, len: usize) {
    // SAFETY: there are `len` elements; zeros are numbers.
    unsafe { from.write_bytes(0, len) }
}

impl<T: Format + Narrow> CompiledAttentionGrad<T>
where
    T::Acc: Score + Into<f64>,
{
    /// The gradients of captures.
    fn sum_captures(&self, sums: &CaptureSums, pool: &Pool, slots: &SlotTable) {
        let Reach { queries, keys, .. } = self.shape.reach;
        sums.run((pool, slots), self.matrices(), |[batch, head], table, worker| {
            let work = AttentionGradWork {
                batch,
                key_head: head / self.sharing,
                heads: head..head + 1,
                queries: 0..queries,
                keys: 0..keys,
                wanted: Wanted { queries: false, keys: false },
            };
            self.task((&work, table), worker, slots);
        });
    }

    /// Batch elements and heads of queries.
    fn matrices(&self) -> [usize; 2] {
        [0, 1].map(|d| self.operands[0].sizes[d])
    }
}

impl<T: Format + Narrow> Runnable for CompiledAttentionGrad<T>
where
    T::Acc: Score + Into<f64>,
{
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if let Some(sums) = &self.captures {
            self.sum_captures(sums, pool, slots);
        }
        let [batch, heads] = self.matrices();
        let (key_heads, wanted) = (self.operands[1].sizes[1], self.wanted());
        let Reach { queries, keys, .. } = self.shape.reach;
        let matrices = batch * key_heads;
        let shared = |matrix: usize, keys: Range<usize>, wanted| {
            let (batch, key_head) = (matrix / key_heads, matrix % key_heads);
            let first = key_head * self.sharing;
            let heads = first..first + self.sharing;
            AttentionGradWork { batch, key_head, heads, queries: 0..queries, keys, wanted }
        };
        // Apart, blocks take seven products where they take five together.
        let slots_of_time = matrices.next_multiple_of(pool.threads());
        if wanted.queries && wanted.keys && 7 * matrices >= 5 * slots_of_time {
            pool.run(matrices, |task, worker| {
                let work = shared(task, 0..keys, wanted);
                self.task((&work, std::ptr::null_mut()), worker, slots);
            });
            return;
        }
        let of = |wanted: bool, size: usize, part: usize| {
            if wanted { size.div_ceil(part) } else { 0 }
        };
        let (tile, span) = (self.shape.block * self.shape.blocks, self.shape.group * GROUPS);
        let key_tasks = matrices * of(wanted.keys, keys, tile);
        let query_tiles = of(wanted.queries, queries, span);
        pool.run(key_tasks + batch * heads * query_tiles, |task, worker| {
            // The first keys and the last queries first: under a causal mask they take longest.
            let work = if let Some(task) = task.checked_sub(key_tasks) {
                let (matrix, first) = (task % (batch * heads), task / (batch * heads));
                let (batch, head) = (matrix / heads, matrix % heads);
                let first = (query_tiles - 1 - first) * span;
                AttentionGradWork {
                    batch,
                    key_head: head / self.sharing,
                    heads: head..head + 1,
                    queries: first..(first + span).min(queries),
                    keys: 0..keys,
                    wanted: Wanted { queries: true, keys: false },
                }
            } else {
                let first = task / matrices * tile;
                let wanted = Wanted { queries: false, keys: true };
                shared(task % matrices, first..(first + tile).min(keys), wanted)
            };
            self.task((&work, std::ptr::null_mut()), worker, slots);
        });
    }

    fn workspace_bytes(&self) -> usize {
        self.captures.as_ref().map_or(0, |sums| sums.bytes(self.matrices()))
    }
}
