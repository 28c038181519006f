//! `weighed_sum`: rows of weight 0 are not read.
#![allow(unsafe_code)] // Rows of slots.

use half::{bf16, f16};
use overdrive_ir::ops::WeighedSum;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, SlotId, TensorType};

use super::line::{Compile, NamedKernel};
use crate::exec::{Runnable, Unsupported};
use crate::gemm::{Element, Narrow, Widen};
use crate::slots::SlotTable;
use crate::threads::{Apart, Pool, ScratchParts};

/// Elements of a task: some microseconds of work.
const TASK: usize = 16 << 10;

/// `weighed_sum`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines,
    lies_wrong,
    ..NamedKernel::new("weighed_sum", Compile::Composite(compile))
};

fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let is_wide = operands.first().is_some_and(|weights| weights.dtype == DType::F64);
    is_wide.then(|| Decline::Because("its kernel sums in f32, and weights are of f64".to_owned()))
}

/// Declines what does not lie row after row.
fn lies_wrong(call: &KernelCall) -> Option<Decline> {
    let is_apart = call.operands.iter().chain(call.results.iter().flatten()).any(|v| !v.is_dense());
    is_apart.then(|| Decline::Because("its kernel reads and writes row after row".to_owned()))
}

fn compile(_: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let op = op.downcast::<WeighedSum>().expect("the table is by name");
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(Sum::<f32>::new(call, op)?),
        DType::F16 => Box::new(Sum::<f16>::new(call, op)?),
        DType::BF16 => Box::new(Sum::<bf16>::new(call, op)?),
        other => return Err(Unsupported::new(format!("there is no weighed sum of {other}"))),
    })
}

/// A compiled sum of numbers of `T`.
struct Sum<T> {
    weights: SlotId,
    /// E and the column of the first tensor.
    columns: [usize; 2],
    tensors: Vec<SlotId>,
    out: SlotId,
    /// Rows and D.
    sizes: [usize; 2],
    number: std::marker::PhantomData<T>,
}

impl<T> Sum<T> {
    fn new(call: &KernelCall, op: &WeighedSum) -> Result<Self, Unsupported> {
        let last = |view: &View| view.ty.sizes().last().copied().unwrap_or(1);
        let (weights, tensors) = (&call.operands[0], &call.operands[1..]);
        let out = call.results[0].as_ref();
        let out = out.ok_or_else(|| Unsupported::new("a weighed sum without a result"))?;
        let width = last(out);
        Ok(Self {
            weights: weights.slot,
            columns: [last(weights), op.first],
            tensors: tensors.iter().map(|view| view.slot).collect(),
            out: out.slot,
            sizes: [out.ty.elements() / width.max(1), width],
            number: std::marker::PhantomData,
        })
    }
}

impl<T: Narrow + Widen<f32> + Element<Acc = f32>> Runnable for Sum<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let ([rows, width], [columns, first]) = (self.sizes, self.columns);
        let out = Apart::new(slots.get(self.out).cast::<T>());
        let per_task = (TASK / width.max(1)).max(1);
        pool.run(rows.div_ceil(per_task), |task, worker| {
            let placed = worker.scratch.place(ScratchParts::new([
                ("the row's sum", 4 * width),
                ("a row", 4 * width),
                ("the row's weights", 4 * self.tensors.len()),
            ]));
            let [sum, wide, of_row] = placed.starts.map(<*mut u8>::cast::<f32>);
            for row in task * per_task..((task + 1) * per_task).min(rows) {
                // SAFETY: the scratch has its parts. Weights have a row of columns for each row of
                // the tensors and of the result, and each task has its own rows.
                unsafe {
                    let sum = std::slice::from_raw_parts_mut(sum, width);
                    let wide = std::slice::from_raw_parts_mut(wide, width);
                    let of_row = std::slice::from_raw_parts_mut(of_row, self.tensors.len());
                    let weights = slots.get(self.weights).cast_const().cast::<T>();
                    let from = weights.add(row * columns + first);
                    T::widen(std::slice::from_raw_parts(from, of_row.len()), of_row);
                    sum.fill(0.0);
                    for (&weight, &tensor) in of_row.iter().zip(&self.tensors) {
                        if weight == 0.0 {
                            continue;
                        }
                        let from = slots.get(tensor).cast_const().cast::<T>().add(row * width);
                        T::widen(std::slice::from_raw_parts(from, width), wide);
                        sum.iter_mut().zip(&*wide).for_each(|(sum, &y)| *sum += weight * y);
                    }
                    let to = out.at(row * width);
                    T::narrow(sum, std::slice::from_raw_parts_mut(to, width));
                }
            }
        });
    }
}
