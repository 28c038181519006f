//! The compiled step: tasks over batch, heads and tiles of queries, and the results where they
//! belong.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::f64::consts::{LN_2, LOG2_E};

use half::{bf16, f16};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::plan::{KernelCall, KernelOp};
use overdrive_ir::{DType, OpRef, Plan};

use super::dropout::Dropping;
use super::few::{FewQueries, Kept, are_few};
use super::function::Functions;
use super::head_rows::HeadRows;
use super::reach::{Reach, SKIPPED_KEYS, block_of, skipped_queries};
use super::results::{element, store};
use super::softmax::{Score, passes};
use super::task::{AttentionShape, Panel};
use super::translator::ScoreBlockShape;
use super::visible::mask_cell;
use crate::exec::{Format, Runnable, Unsupported};
use crate::gemm::{Element, MicroKernel, Narrow};
use crate::kernels::named::{Compile, NamedKernel};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{Pool, Worker};

/// Queries of a task where there are many: enough that packing keys and values is a few percent.
const TILE: usize = 512;
/// Tasks that keep the workers of a large machine busy to the end: with fewer, tiles are half as
/// long.
const TASKS: usize = 64;
/// Keys of a block, about: their scores against a panel of 32 queries fill two thirds of the
/// first-level cache.
const BLOCK: usize = 256;

/// `attention` with its score and mask functions, and dropout.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    regions: |_, _| None,
    ..NamedKernel::new("attention", Compile::Composite(compile))
};

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let views = call.operands.iter().chain(call.results.iter().flatten());
    if views.flat_map(|view| &view.strides).any(|&stride| stride < 0) {
        return Err(Unsupported::new("attention over views that run backwards has no kernel"));
    }
    let attention = op.downcast::<Attention>().expect("the table is by name");
    let is_few = are_few(attention, call);
    let kept = || Kept { call: call.clone(), has_scales: false, pages: None };
    Ok(match call.operands[0].ty.dtype {
        DType::F32 if is_few => Box::new(FewQueries::<f32>::new(plan, kept(), attention)?),
        DType::F16 if is_few => Box::new(FewQueries::<f16>::new(plan, kept(), attention)?),
        DType::BF16 if is_few => Box::new(FewQueries::<bf16>::new(plan, kept(), attention)?),
        DType::F64 => Box::new(CompiledAttention::<f64>::new(plan, call, attention)?),
        DType::F32 => Box::new(CompiledAttention::<f32>::new(plan, call, attention)?),
        DType::F16 => Box::new(CompiledAttention::<f16>::new(plan, call, attention)?),
        DType::BF16 => Box::new(CompiledAttention::<bf16>::new(plan, call, attention)?),
        other => return Err(Unsupported::new(format!("there is no attention of {other}"))),
    })
}

/// Compiled attention.
#[derive(Debug)]
struct CompiledAttention<T: Element> {
    /// q, k, v.
    operands: [Strided; 3],
    out: Option<Strided>,
    lse: Option<Strided>,
    shape: AttentionShape<T>,
    /// Query heads that share a key head.
    group: usize,
}

impl<T: Format + Narrow> CompiledAttention<T>
where
    T::Acc: Score,
{
    fn new(plan: &Plan, call: &KernelCall, attention: &Attention) -> Result<Self, Unsupported> {
        let operands = [0, 1, 2].map(|i| Strided::new(&call.operands[i]));
        let [q, k, v] = &operands;
        let kernel = MicroKernel::<T>::best();
        let [rows, width] = kernel.tile();
        let tasks = q.sizes[..3].iter().product::<usize>() / TILE;
        let tile = if tasks < TASKS { TILE / 2 } else { TILE };
        let scale = attention.factor(q.sizes[3]);
        let extents = [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]];
        let KernelOp::Composite(_, regions) = &call.op else {
            unreachable!("attention is a composite")
        };
        let (seed, captures) = attention.seed_and_captures(&call.operands[3..]);
        let cell = mask_cell(regions, captures)?;
        let block = match attention.threshold {
            Some(_) => SKIPPED_KEYS,
            None => block_of(k.sizes[2], BLOCK, (rows, cell[1])),
        };
        let functions = Functions::new(
            plan,
            (regions, captures),
            ScoreBlockShape { rows: block, stride: width, cell, extents },
            scale,
        )?;
        let factor = if functions.has_score() { LOG2_E } else { scale * LOG2_E };
        // Running maxima are of scores, or of exponents of 2.
        let limit = |threshold: f64| match functions.has_score() {
            true => threshold.ln(),
            false => threshold.log2(),
        };
        let limit = attention.threshold.map(limit);
        // Queries of a tile that is skipped stay together.
        let whole = limit.map_or(width, |_| skipped_queries(width)[0]);
        let shape = AttentionShape {
            kernel,
            passes: passes::<T::Acc>(width),
            pairs: T::DTYPE == DType::BF16 && kernel.interleaves() == Some(2),
            depth: q.sizes[3],
            values: v.sizes[3],
            reach: Reach {
                queries: q.sizes[2],
                keys: k.sizes[2],
                causal: attention.mask == Mask::Causal,
            },
            factor: if factor == 0.0 { f64::from(f32::MIN_POSITIVE) } else { factor },
            tile: q.sizes[2].clamp(1, tile).next_multiple_of(whole),
            block,
            functions,
            limit,
            dropping: Dropping::new::<T::Acc>(attention.dropout, seed, extents),
        };
        let group = q.sizes[1] / k.sizes[1].max(1);
        let [out, lse] = [0, 1].map(|i| call.results[i].as_ref().map(Strided::new));
        Ok(Self { out, lse, shape, group, operands })
    }

    fn rows(&self, operand: usize, [b, h]: [usize; 2], slots: &SlotTable) -> HeadRows<T> {
        let place = &self.operands[operand];
        let offset = b as i64 * place.strides[0] + h as i64 * place.strides[1];
        let from = place.get(slots).cast::<T>().wrapping_offset(offset as isize);
        HeadRows { from, row: place.strides[2] as usize, channel: place.strides[3] as usize }
    }

    fn task(&self, [b, h]: [usize; 2], first: usize, worker: &mut Worker<'_>, slots: &SlotTable) {
        let head = [b, h / self.group];
        let rows =
            [self.rows(0, [b, h], slots), self.rows(1, head, slots), self.rows(2, head, slots)];
        let buffers = self.shape.buffers(worker.scratch);
        // SAFETY: the slots hold their operands; the buffers are this shape's.
        unsafe { self.shape.run(rows, ([b, h], first), (&buffers, slots)) };
        let queries = (self.shape.reach.queries - first).min(self.shape.tile);
        for Panel { query, count, place } in self.shape.panels(queries) {
            // SAFETY: the task has left its panels there.
            let finished = unsafe { self.shape.finished(place, &buffers) };
            for column in 0..count {
                let at = [b, h, first + query + column];
                // SAFETY: the panel has the column, and the results have the query, which belongs
                // to this task.
                unsafe {
                    let (max, sum) = (*finished.max.add(column), *finished.sum.add(column));
                    if let Some(lse) = &self.lse {
                        let ln_2 = T::Acc::from_f64(LN_2);
                        *element(lse, at, slots) = if sum == T::Acc::ZERO {
                            T::Acc::LOWEST
                        } else if self.shape.functions.has_score() {
                            max.add(sum.log2().mul(ln_2))
                        } else {
                            max.add(sum.log2()).mul(ln_2)
                        };
                    }
                    if let Some(out) = &self.out {
                        let values = self.shape.values;
                        let row =
                            std::slice::from_raw_parts(finished.out.add(column * values), values);
                        store::<T>(row, element(out, at, slots), out.strides[3]);
                    }
                }
            }
        }
    }
}

impl<T: Format + Narrow> Runnable for CompiledAttention<T>
where
    T::Acc: Score,
{
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let [batch, heads] = [0, 1].map(|d| self.operands[0].sizes[d]);
        let tiles = self.shape.reach.queries.div_ceil(self.shape.tile);
        pool.run(batch * heads * tiles, |task, worker| {
            // Tiles from the last on: under a causal mask they take longest, and nobody should wait
            // for them alone.
            let (tile, matrix) = (tiles - 1 - task / (batch * heads), task % (batch * heads));
            self.task([matrix / heads, matrix % heads], tile * self.shape.tile, worker, slots);
        });
    }
}
