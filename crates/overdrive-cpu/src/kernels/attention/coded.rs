//! `quantized_attention`: a query against keys and values that are codes, as a cache of 8 bits has
//! them.
//!
//! Such a call is the next token of a decoder: one query of each head. So a task is one query, and
//! its products are dot products, not tiles. It walks over blocks of keys: products with codes,
//! score and mask functions, weights, weighted sums of codes (`coded_passes`). Codes are widened in
//! registers; no row is ever stored as numbers. Invariant: beyond operands and results memory is
//! O(block), whatever the length.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::f64::consts::{LN_2, LOG2_E};

use half::{bf16, f16};
use overdrive_ir::ops::QuantizedAttention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::plan::{KernelCall, KernelOp};
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, TensorType};

use super::call::{element, store};
use super::coded_passes::{CodedPasses, CodedRows, Weighing};
use super::function::{Functions, ScoreBlockShape};
use super::reach::Reach;
use super::visible::{Visible, mask_cell};
use crate::exec::{Runnable, Unsupported};
use crate::gemm::{Element, Narrow, Widen};
use crate::kernels::named::{Compile, NamedKernel};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{Pool, ScratchParts, Worker};

/// Keys of a block: their codes, of 128 channels, fill the first-level cache.
const BLOCK: usize = 256;

/// `quantized_attention` with its score and mask functions.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    regions: |_| None,
    declines,
    lies_wrong,
    ..NamedKernel::new("quantized_attention", Compile::Composite(compile))
};

fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let is_wide = operands.first().is_some_and(|q| q.dtype == DType::F64);
    is_wide.then(|| Decline::Because("its kernel sums in f32, and queries are of f64".to_owned()))
}

/// Declines codes whose channels lie apart, and views that run backwards.
fn lies_wrong(call: &KernelCall) -> Option<Decline> {
    let is_backward = call.operands.iter().flat_map(|view| &view.strides).any(|&step| step < 0);
    let is_apart = call.operands[..3].iter().any(|view| view.strides[3] != 1);
    (is_backward || is_apart)
        .then(|| Decline::Because("its kernel reads rows of q, k and v as they are".to_owned()))
}

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let op = op.downcast::<QuantizedAttention>().expect("the table is by name");
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(CompiledCoded::<f32>::new(plan, call, op)?),
        DType::F16 => Box::new(CompiledCoded::<f16>::new(plan, call, op)?),
        DType::BF16 => Box::new(CompiledCoded::<bf16>::new(plan, call, op)?),
        other => return Err(Unsupported::new(format!("there is no coded attention of {other}"))),
    })
}

/// Compiled attention over codes; queries and results are of `T`.
#[derive(Debug)]
struct CompiledCoded<T> {
    q: Strided,
    /// k and v, each with its scales.
    rows: [[Strided; 2]; 2],
    out: Option<Strided>,
    lse: Option<Strided>,
    reach: Reach,
    /// Query heads that share a key head.
    group: usize,
    functions: Functions,
    /// Factor that turns scores into exponents of 2.
    factor: f32,
    passes: CodedPasses,
    number: std::marker::PhantomData<T>,
}

impl<T: Narrow + Widen<f32> + Element<Acc = f32>> CompiledCoded<T> {
    fn new(plan: &Plan, call: &KernelCall, op: &QuantizedAttention) -> Result<Self, Unsupported> {
        let [q, k, v, k_scale, v_scale] = [0, 1, 2, 3, 4].map(|i| Strided::new(&call.operands[i]));
        let KernelOp::Composite(_, regions) = &call.op else {
            unreachable!("attention is a composite")
        };
        let scale = op.attention.factor(q.sizes[3]);
        let captures = &call.operands[QuantizedAttention::OPERANDS..];
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
        let passes = CodedPasses::of(k.dtype)
            .ok_or_else(|| Unsupported::new(format!("no kernel reads codes of {}", k.dtype)))?;
        let [out, lse] = [0, 1].map(|i| call.results[i].as_ref().map(Strided::new));
        Ok(Self {
            out,
            lse,
            reach: Reach {
                queries: q.sizes[2],
                keys: k.sizes[2],
                causal: op.attention.mask == Mask::Causal,
            },
            group: q.sizes[1] / k.sizes[1].max(1),
            functions,
            factor: factor as f32,
            passes,
            q,
            rows: [[k, k_scale], [v, v_scale]],
            number: std::marker::PhantomData,
        })
    }

    /// Rows of k (0) or v (1) of a key head.
    fn rows(&self, which: usize, [b, head]: [usize; 2], slots: &SlotTable) -> CodedRows {
        let at = |place: &Strided| {
            let offset = b as i64 * place.strides[0] + head as i64 * place.strides[1];
            place.get(slots).wrapping_offset(offset as isize * place.width() as isize)
        };
        let [codes, scales] = &self.rows[which];
        CodedRows {
            codes: at(codes),
            row: codes.strides[2] as usize,
            channels: codes.sizes[3],
            scales: at(scales).cast(),
            scale_row: scales.strides[2] as usize,
        }
    }

    fn task(&self, [b, h, i]: [usize; 3], worker: &mut Worker<'_>, slots: &SlotTable) {
        let head = [b, h / self.group];
        let [keys, values] = [0, 1].map(|which| self.rows(which, head, slots));
        let placed = worker.scratch.place(ScratchParts::new([
            ("query", 4 * keys.channels),
            ("output", 4 * values.channels),
            ("scores", 4 * BLOCK),
            ("visibility", if self.functions.has_mask() { BLOCK } else { 0 }),
            ("score and mask functions", self.functions.scratch_bytes()),
        ]));
        let [query, sums, scores, visible, functions] = placed.starts;
        let [query, sums, scores] = [query, sums, scores].map(<*mut u8>::cast::<f32>);
        // SAFETY: each part has its room, on a 64-byte boundary, and is this task's. The slots hold
        // q, k, v and their scales. They have as many rows and channels as their views say. q and
        // the results have the query.
        unsafe {
            let query = std::slice::from_raw_parts_mut(query, keys.channels);
            let from = element::<T>(&self.q, [b, h, i], slots);
            T::widen(std::slice::from_raw_parts(from, query.len()), query);
            let sums = std::slice::from_raw_parts_mut(sums, values.channels);
            sums.fill(0.0);
            let mut weighing = Weighing::new(self.factor);
            let end = self.reach.visible(i + 1);
            for key in (0..end).step_by(BLOCK) {
                let count = (end - key).min(BLOCK);
                let at = [b, h, i, key].map(|index| index as i32);
                let scores = std::slice::from_raw_parts_mut(scores, count);
                let lanes = if self.functions.has_mask() { count } else { 0 };
                let visible = std::slice::from_raw_parts_mut(visible, lanes);
                let visibility = self.functions.visible(visible, at, slots, functions);
                if visibility == Visible::None {
                    continue;
                }
                let (keys, values) = (keys.from(key), values.from(key));
                self.passes.products(&keys, query, scores);
                self.functions.score((scores, std::ptr::null_mut()), at, slots, functions);
                let visible = (visibility == Visible::Some).then_some(&*visible);
                self.passes.weigh(&mut weighing, &values, scores, visible);
                self.passes.sum(&values, (scores, weighing.shrink), sums);
            }
            let inverse = if weighing.sum == 0.0 { 0.0 } else { weighing.sum.recip() };
            if let Some(lse) = &self.lse {
                *element(lse, [b, h, i], slots) = if weighing.sum == 0.0 {
                    f32::NEG_INFINITY
                } else {
                    (weighing.max + weighing.sum.log2()) * LN_2 as f32
                };
            }
            if let Some(out) = &self.out {
                sums.iter_mut().for_each(|sum| *sum *= inverse);
                store::<T>(sums, element(out, [b, h, i], slots), out.strides[3]);
            }
        }
    }
}

impl<T: Narrow + Widen<f32> + Element<Acc = f32>> Runnable for CompiledCoded<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let [batch, heads, queries] = [0, 1, 2].map(|d| self.q.sizes[d]);
        pool.run(batch * heads * queries, |task, worker| {
            // Queries of one head follow each other: they read the same codes.
            let (matrix, query) = (task / queries, task % queries);
            self.task([matrix / heads, matrix % heads, query], worker, slots);
        });
    }
}
