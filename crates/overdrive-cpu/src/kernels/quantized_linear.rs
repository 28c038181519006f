//! `quantized_linear` of float activations, with its epilogue: codes are read as they lie, and
//! become numbers in registers or in panels.
//!
//! Activations below f32 are widened on their way in; the epilogue rounds the results. Types that
//! have no kernel are declined, and so expanded by the plan.
#![allow(unsafe_code)] // Slices over slots, and the step's own room.

use half::{bf16, f16};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::plan::{Epilogue, KernelCall, View};
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, SlotId, TensorType, row_major};

use super::dense_rows::{DenseRows, Number, numbers_at};
use super::line::{Compile, NamedKernel};
use crate::exec::{BatchParts, Runnable, Sums, Unsupported};
use crate::memory::AlignedBytes;
use crate::quantized::{PackedNumbers, QuantizedMatrix, linear, room_floats};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// `quantized_linear` with float activations. With codes on both sides it is a product of those,
/// with an epilogue.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    takes_epilogue: true,
    declines,
    ..NamedKernel::new("quantized_linear", Compile::Composite(compile))
};

fn declines(op: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let is_float = |op: &QuantizedLinear| op.activations == Activations::Float;
    if !op.composite::<QuantizedLinear>().is_some_and(is_float) {
        return Some(Decline::NoKernel);
    }
    let [x, weights @ ..] = operands else { return None };
    let reason = if !matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16) {
        Some(format!("activations of {} are multiplied by no codes", x.dtype))
    } else if weights.iter().any(|ty| ty.elements() == 0) {
        Some("weights without elements".to_owned())
    } else {
        let refused = weights.iter().find(|ty| !PackedNumbers::takes(ty.dtype));
        refused.map(|ty| format!("codes, scales and zeros of {} have no kernel", ty.dtype))
    };
    reason.map(Decline::Because)
}

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let op = op.downcast::<QuantizedLinear>().expect("the table is by name");
    let epilogue =
        call.epilogue.as_ref().ok_or_else(|| Unsupported::new("a product without an epilogue"))?;
    let names = op.operands();
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(CompiledLinear::<f32>::new(plan, call, epilogue, &names)?),
        DType::F16 => Box::new(CompiledLinear::<f16>::new(plan, call, epilogue, &names)?),
        DType::BF16 => Box::new(CompiledLinear::<bf16>::new(plan, call, epilogue, &names)?),
        other => return Err(Unsupported::new(format!("activations of {other}"))),
    })
}

/// An operand of the weights, as it lies in its slot.
#[derive(Debug)]
struct Kept {
    slot: SlotId,
    dtype: DType,
    elements: usize,
}

impl Kept {
    fn new(view: &View) -> Self {
        Self { slot: view.slot, dtype: view.ty.dtype, elements: view.ty.elements() }
    }

    /// # Safety
    /// The slot has its memory, initialised, and nobody writes it while the numbers live.
    unsafe fn numbers<'a>(&self, slots: &'a SlotTable) -> PackedNumbers<'a> {
        // SAFETY: the slot has the bytes of `elements` numbers, and nobody writes them while they
        // are borrowed.
        let bytes = unsafe { slots.slice::<u8>(self.slot, self.dtype.bytes_for(self.elements)) };
        PackedNumbers::new(bytes, self.dtype, self.elements)
    }
}

/// A compiled call.
struct CompiledLinear<T> {
    x: DenseRows<T>,
    /// `[batch0, batch1, m, n]`.
    shape: [usize; 4],
    /// For each call, the start of its rows of x and the destination of its sums.
    calls: Vec<(usize, Sums)>,
    k: usize,
    codes: Kept,
    scales: Kept,
    zeros: Option<Kept>,
    tensor_scale: Option<Kept>,
    group: usize,
    /// For `linear`.
    room: AlignedBytes,
}

impl<T: Number> CompiledLinear<T> {
    fn new(
        plan: &Plan,
        call: &KernelCall,
        Epilogue(program): &Epilogue,
        names: &[&str],
    ) -> Result<Self, Unsupported> {
        let operand = |name: &str| {
            names.iter().position(|n| *n == name).map(|i| Kept::new(&call.operands[i]))
        };
        let (k, groups) = (call.operands[1].ty.sizes()[1], call.operands[2].ty.sizes()[1]);
        let [batch @ .., m, n] = program.extents.as_slice() else {
            return Err(Unsupported::new("a product without rows and columns"));
        };
        let of_x: Vec<i64> =
            row_major(&[batch, &[m * k]].concat()).into_iter().map(|s| s as i64).collect();
        let BatchParts { parts, .. } =
            BatchParts::of(program.clone(), [&of_x[..batch.len()], &[]])?;
        let extents = &parts[0].program.extents;
        let shape = [extents[0], extents[1], *m, *n];
        let calls = parts.into_iter().map(|part| {
            let sums = Sums::new::<f32>(plan, &Epilogue(part.program))?;
            Ok((usize::try_from(part.lhs_offset).expect("rows of x lie row after row"), sums))
        });
        let room = size_of::<f32>() * room_floats(shape[..3].iter().product(), k);
        let always = "quantized_linear has codes and a scale";
        Ok(Self {
            x: DenseRows::new(&call.operands[0])?,
            shape,
            calls: calls.collect::<Result<_, Unsupported>>()?,
            k,
            codes: operand("codes").expect(always),
            scales: operand("scale").expect(always),
            zeros: operand("zero"),
            tensor_scale: operand("tensor_scale"),
            group: k.checked_div(groups).unwrap_or(1).max(1),
            room: AlignedBytes::filled(room, 0).map_err(|e| Unsupported::new(e.to_string()))?,
        })
    }
}

impl<T: Number> Runnable for CompiledLinear<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        self.x.read(pool, slots);
        let [outer, inner, m, n] = self.shape;
        for (first, sums) in &self.calls {
            // SAFETY: earlier steps wrote the operands; nobody else touches the result and the
            // step's own room.
            unsafe {
                let numbers = |kept: &Kept| kept.numbers(slots);
                let factor = self.tensor_scale.as_ref().map_or(1.0, |kept| numbers(kept).first());
                let (codes, scales) = (numbers(&self.codes), numbers(&self.scales));
                let weights = QuantizedMatrix::new(
                    [n, self.k],
                    self.group,
                    codes,
                    scales,
                    self.zeros.as_ref().map(numbers),
                );
                let weights = weights.times(factor);
                let room = numbers_at(self.room.start().cast(), self.room.len() / size_of::<f32>());
                let x: &[f32] = numbers_at(self.x.wide(slots), self.x.elements());
                let x = &x[*first..first + outer * inner * m * self.k];
                sums.take(slots, self.shape, |output| linear(pool, x, &weights, output, room));
            }
        }
    }

    fn workspace_bytes(&self) -> usize {
        self.x.bytes() + self.room.len()
    }
}
