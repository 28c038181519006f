//! `quantized_linear` of float activations: codes are read as they lie, and become numbers in registers or in panels.
//!
//! Activations below f32 are widened on their way in, and results narrowed on their way out. What has no kernel (f64,
//! weights that do not lie row after row, or have no elements) is the reference's.
#![allow(unsafe_code)] // Slices over slots, and the step's own room.

use half::{bf16, f16};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Plan, SlotId};

use super::rows::{Number, Rows, Side, is_dense, numbers_at};
use crate::exec::{Host, Runnable, Unsupported};
use crate::memory::AlignedBytes;
use crate::quantized::{Numbers, Weights, product, room_floats};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Compiles a product by quantized weights.
pub(super) fn compile(
    plan: &Plan,
    call: &KernelCall,
    op: &QuantizedLinear,
) -> Result<Box<dyn Runnable>, Unsupported> {
    let (Some(Some(y)), names) = (call.results.first(), op.operands()) else {
        return Ok(Box::new(Host::new(plan, call)?));
    };
    let weights = || names.iter().zip(&call.operands).skip(1);
    let kept = |(_, view): (&&str, &View)| Numbers::takes(view.ty.dtype) && is_dense(view);
    let forward = [&call.operands[0], y].iter().all(|view| view.strides.iter().all(|&stride| stride >= 0));
    let empty = call.operands[1].ty.elements() == 0;
    if !forward || empty || !weights().all(kept) {
        return Ok(Box::new(Host::new(plan, call)?));
    }
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(Product::<f32>::new(call, y, &names)?),
        DType::F16 => Box::new(Product::<f16>::new(call, y, &names)?),
        DType::BF16 => Box::new(Product::<bf16>::new(call, y, &names)?),
        _ => Box::new(Host::new(plan, call)?),
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
    unsafe fn numbers<'a>(&self, slots: &'a SlotTable) -> Numbers<'a> {
        // SAFETY: as the caller promised.
        let bytes = unsafe { slots.slice::<u8>(self.slot, self.dtype.bytes_for(self.elements)) };
        Numbers::new(bytes, self.dtype, self.elements)
    }
}

/// A compiled product.
struct Product<T> {
    x: Rows<T>,
    y: Rows<T>,
    /// N, K.
    shape: [usize; 2],
    codes: Kept,
    scales: Kept,
    zeros: Option<Kept>,
    tensor_scale: Option<Kept>,
    group: usize,
    /// For `product`.
    room: AlignedBytes,
}

impl<T: Number> Product<T> {
    fn new(call: &KernelCall, y: &View, names: &[&str]) -> Result<Self, Unsupported> {
        let operand =
            |name: &str| names.iter().position(|n| *n == name).map(|i| Kept::new(&call.operands[i]));
        let sizes = call.operands[1].ty.sizes();
        let (shape, groups) = ([sizes[0], sizes[1]], call.operands[2].ty.sizes()[1]);
        let group = shape[1].checked_div(groups).unwrap_or(1).max(1);
        let always = "quantized_linear has codes and a scale";
        let rows = y.ty.elements().checked_div(shape[0]).unwrap_or(0);
        let room = AlignedBytes::filled(size_of::<f32>() * room_floats(rows, shape[1]), 0);
        Ok(Self {
            x: Rows::new(&call.operands[0], [Side::Slot, Side::Rows])?,
            y: Rows::new(y, [Side::Rows, Side::Slot])?,
            shape,
            codes: operand("codes").expect(always),
            scales: operand("scale").expect(always),
            zeros: operand("zero"),
            tensor_scale: operand("tensor_scale"),
            group,
            room: room.map_err(|e| Unsupported::new(e.to_string()))?,
        })
    }
}

impl<T: Number> Runnable for Product<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let (x, y) = (&self.x, &self.y);
        x.read(pool, slots);
        // SAFETY: earlier steps wrote the operands; nobody else touches the result and the step's own room.
        unsafe {
            let numbers = |kept: &Kept| kept.numbers(slots);
            let factor = self.tensor_scale.as_ref().map_or(1.0, |kept| numbers(kept).first());
            let zeros = self.zeros.as_ref().map(numbers);
            let weights =
                Weights::new(self.shape, self.group, numbers(&self.codes), numbers(&self.scales), zeros);
            let room = numbers_at(self.room.start().cast(), self.room.len() / size_of::<f32>());
            let (x, y) = (numbers_at(x.wide(slots), x.elements()), numbers_at(y.wide(slots), y.elements()));
            product(pool, x, &weights.times(factor), y, room);
        }
        y.write(pool, slots);
    }

    fn workspace_bytes(&self) -> usize {
        self.x.bytes() + self.y.bytes() + self.room.len()
    }
}
