//! `quantize_rows`: activations as a product by quantized weights takes them, a row at a time.
//!
//! This is a kernel of its own and no fused loop, because the cost per row counts. A loop calls a
//! dozen kernels for the few vectors of a short row or a block of 32.
#![allow(unsafe_code)] // Rows of slots.

use half::{bf16, f16};
use overdrive_ir::ops::QuantizeRows;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, SlotId, TensorType};

use super::dense_rows::{DenseRows, Number, numbers_at};
use super::line::{Compile, NamedKernel};
use crate::exec::{Runnable, Unsupported};
use crate::quantized::RowQuantizer;
use crate::slots::SlotTable;
use crate::threads::{Apart, Pool};

/// Elements of a task: some microseconds of work.
const TASK: usize = 16 << 10;

/// `quantize_rows`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines,
    lies_wrong,
    ..NamedKernel::new("quantize_rows", Compile::Composite(compile))
};

fn declines(op: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let (op, x) = (op.composite::<QuantizeRows>()?, operands.first()?);
    let reason = if RowQuantizer::new(op).is_none() {
        "codes of less than a byte".to_owned()
    } else if x.sizes().last() == Some(&0) {
        "rows of no elements".to_owned()
    } else if !matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16) {
        format!("activations of {}", x.dtype)
    } else {
        return None;
    };
    Some(Decline::Because(format!("its kernel does not take {reason}")))
}

/// Declines results that do not lie row after row, and an x that lies backwards.
fn lies_wrong(call: &KernelCall) -> Option<Decline> {
    let is_backward = call.operands[0].strides.iter().any(|&stride| stride < 0);
    let is_apart = call.results.iter().any(|view| view.as_ref().is_none_or(|v| !v.is_dense()));
    (is_backward || is_apart)
        .then(|| Decline::Because("its kernel reads and writes row after row".to_owned()))
}

fn compile(_: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let op = op.downcast::<QuantizeRows>().expect("the table is by name");
    let x = &call.operands[0];
    let results: Vec<&View> = call.results.iter().flatten().collect();
    let quantizer =
        RowQuantizer::new(op).ok_or_else(|| Unsupported::new("codes without a kernel"))?;
    Ok(match x.ty.dtype {
        DType::F32 => Box::new(Quantization::<f32>::new(x, &results, quantizer)?),
        DType::F16 => Box::new(Quantization::<f16>::new(x, &results, quantizer)?),
        DType::BF16 => Box::new(Quantization::<bf16>::new(x, &results, quantizer)?),
        other => return Err(Unsupported::new(format!("activations of {other}"))),
    })
}

/// A compiled quantization.
struct Quantization<T> {
    x: DenseRows<T>,
    k: usize,
    quantizer: RowQuantizer,
    numbers: SlotId,
    /// Bytes of a number.
    width: usize,
    scales: Option<SlotId>,
}

impl<T: Number> Quantization<T> {
    fn new(x: &View, results: &[&View], quantizer: RowQuantizer) -> Result<Self, Unsupported> {
        Ok(Self {
            x: DenseRows::new(x)?,
            k: x.ty.sizes().last().copied().unwrap_or(1),
            quantizer,
            numbers: results[0].slot,
            width: results[0].ty.dtype.bits() / 8,
            scales: results.get(1).map(|view| view.slot),
        })
    }
}

impl<T: Number> Runnable for Quantization<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        self.x.read(pool, slots);
        let (k, width) = (self.k, self.width);
        // SAFETY: earlier steps wrote x, and nobody else touches it during the step.
        let x: &[f32] = unsafe { numbers_at(self.x.wide(slots), self.x.elements()) };
        let scales = self.scales.map_or(std::ptr::null_mut(), |slot| slots.get(slot));
        let (numbers, scales) = (Apart::new(slots.get(self.numbers)), Apart::new(scales.cast()));
        let (rows, per_task) = (x.len() / k, (TASK / k).max(1));
        pool.run(rows.div_ceil(per_task), |task, _| {
            for row in task * per_task..((task + 1) * per_task).min(rows) {
                let at = row * k;
                // SAFETY: results have a number for each element of x and a scale for each row,
                // apart from x. If there are no scales, none are written.
                unsafe {
                    self.quantizer.row(&x[at..at + k], numbers.at(at * width), scales.at(row));
                }
            }
        });
    }

    fn workspace_bytes(&self) -> usize {
        self.x.bytes()
    }
}
