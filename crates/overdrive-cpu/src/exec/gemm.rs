//! Matrix products: a `GemmCall` as calls of `gemm`, and the packing of its right operand.
#![allow(unsafe_code)] // Slices over slots.

use half::{bf16, f16};
use overdrive_ir::plan::{Epilogue, GemmCall, Layout, MatrixView};
use overdrive_ir::{DType, Plan, SlotId};

use super::batch::BatchParts;
use super::format::{Format, Named};
use super::runnable::{Runnable, Unsupported};
use super::sums::Sums;
use crate::gemm::{Element, MicroKernel, Packed, Rhs, View};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Compiles a product.
pub(super) fn compile(plan: &Plan, call: &GemmCall) -> Result<Box<dyn Runnable>, Unsupported> {
    Ok(match call.lhs.dtype {
        DType::F64 => Box::new(Gemm::<f64>::new(plan, call)?),
        DType::F32 => Box::new(Gemm::<f32>::new(plan, call)?),
        DType::F16 => Box::new(Gemm::<f16>::new(plan, call)?),
        DType::BF16 => Box::new(Gemm::<bf16>::new(plan, call)?),
        DType::I8 => Box::new(Gemm::<i8>::new(plan, call)?),
        other => {
            return Err(Unsupported::new(format!(
                "there are no products of {other}; convert it first"
            )));
        }
    })
}

/// An operand in its layout in a slot.
#[derive(Debug)]
struct Operand {
    slot: SlotId,
    /// Elements of the slot.
    elements: usize,
    offset: usize,
    shape: [usize; 4],
    strides: [usize; 4],
}

impl Operand {
    fn new(
        plan: &Plan,
        view: &MatrixView,
        batch: ([usize; 2], [i64; 2]),
        [rows, cols]: [usize; 2],
    ) -> Result<Self, Unsupported> {
        let (extents, steps) = batch;
        let strides = [steps[0], steps[1], view.row_stride, view.col_stride];
        let forward = |stride: i64| {
            usize::try_from(stride)
                .map_err(|_| Unsupported::new("an operand that is read backwards"))
        };
        // A matrix that all of the batch shares is one matrix.
        let extent = |axis: usize| if steps[axis] == 0 { 1 } else { extents[axis] };
        Ok(Self {
            slot: view.slot,
            elements: plan.slot(view.slot).bytes() * 8 / view.dtype.bits(),
            offset: forward(view.offset)?,
            shape: [extent(0), extent(1), rows, cols],
            strides: [
                forward(strides[0])?,
                forward(strides[1])?,
                forward(strides[2])?,
                forward(strides[3])?,
            ],
        })
    }

    /// # Safety
    /// The slot has its memory, initialised, and nobody writes it while the view lives.
    unsafe fn view<'a, T>(&self, slots: &'a SlotTable, offset: usize) -> View<'a, T> {
        // SAFETY: the slot has `elements` elements, by its bytes in the plan; nobody writes them
        // while the view lives.
        let data = unsafe { slots.slice(self.slot, self.elements) };
        View::new(&data[(self.offset + offset).min(self.elements)..], self.shape, self.strides)
    }
}

/// The kernel of a packed form.
fn packed_as<T: Element>(name: &str) -> Result<&'static MicroKernel<T>, Unsupported> {
    let kernel = MicroKernel::supported().find(|kernel| kernel.name() == name);
    kernel.ok_or_else(|| Unsupported::new(format!("no kernel here packs as `{name}`")))
}

/// The right operand.
#[derive(Debug)]
enum Right<T: Element> {
    Strided(Operand),
    Packed { slot: SlotId, kernel: &'static MicroKernel<T>, shape: [usize; 4] },
}

/// One call of `gemm`: where its operands start, and where its sums go.
#[derive(Debug)]
struct PartCall {
    lhs_offset: usize,
    rhs_offset: usize,
    sums: Sums,
}

/// A compiled `GemmCall`.
#[derive(Debug)]
struct Gemm<T: Element> {
    lhs: Operand,
    rhs: Right<T>,
    /// `[batch0, batch1, m, n]`.
    shape: [usize; 4],
    calls: Vec<PartCall>,
}

impl<T: Format> Gemm<T> {
    fn new(plan: &Plan, call: &GemmCall) -> Result<Self, Unsupported> {
        if call.rhs.dtype != T::DTYPE || call.accumulate != T::Acc::DTYPE {
            let expected = format!("{} by {} with sums in {}", T::DTYPE, T::DTYPE, T::Acc::DTYPE);
            let found = format!(
                "{} by {} with sums in {}",
                call.lhs.dtype, call.rhs.dtype, call.accumulate
            );
            return Err(Unsupported::new(format!("products are {expected}, not {found}")));
        }
        let strides = [call.lhs.batch_strides.as_slice(), &call.rhs.batch_strides];
        let BatchParts { parts, lhs_strides, rhs_strides } =
            BatchParts::of(call.epilogue.0.clone(), strides)?;
        let extents = &parts[0].program.extents;
        let shape = [extents[0], extents[1], call.m, call.n];
        let batch = |strides| ([shape[0], shape[1]], strides);
        let lhs = Operand::new(plan, &call.lhs, batch(lhs_strides), [call.m, call.k])?;
        let rhs = match plan.slot(call.rhs.slot).layout {
            Layout::Packed { name, .. } => {
                let kernel = packed_as(name)?;
                Right::Packed { slot: call.rhs.slot, kernel, shape: [1, 1, call.k, call.n] }
            }
            _ => {
                Right::Strided(Operand::new(plan, &call.rhs, batch(rhs_strides), [call.k, call.n])?)
            }
        };
        let offset =
            |offset: i64| usize::try_from(offset).expect("operands start inside of their slots");
        let mut calls = Vec::with_capacity(parts.len());
        for part in parts {
            let (lhs_offset, rhs_offset) = (offset(part.lhs_offset), offset(part.rhs_offset));
            let sums = Sums::new::<T::Acc>(plan, &Epilogue(part.program))?;
            calls.push(PartCall { lhs_offset, rhs_offset, sums });
        }
        Ok(Self { lhs, rhs, shape, calls })
    }
}

impl<T: Format> Runnable for Gemm<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        for call in &self.calls {
            // SAFETY: here and below, the plan lets a step write only bytes that no operand of it
            // shares. Earlier steps have filled the operands.
            let lhs = unsafe { self.lhs.view::<T>(slots, call.lhs_offset) };
            let (kernel, rhs) = match &self.rhs {
                Right::Strided(rhs) => {
                    // SAFETY: the slot is an operand of the step, as that of the left one is.
                    (MicroKernel::best(), Rhs::Strided(unsafe { rhs.view(slots, call.rhs_offset) }))
                }
                Right::Packed { slot, kernel, shape } => {
                    // SAFETY: the slot is an operand of the step, which a prepare step has filled.
                    let bytes = unsafe { slots.slice(*slot, kernel.packed_b_bytes(*shape)) };
                    (*kernel, Rhs::Packed(Packed::new(kernel, bytes, *shape)))
                }
            };
            // SAFETY: the operands share no bytes with the results.
            unsafe {
                call.sums.take(slots, self.shape, |output| kernel.gemm(pool, lhs, rhs, output));
            }
        }
    }
}

/// Compiles the packing of a right operand `[k, n]` for later products.
pub(super) fn compile_pack(
    plan: &Plan,
    source: &MatrixView,
    size: [usize; 2],
    to: SlotId,
) -> Result<Box<dyn Runnable>, Unsupported> {
    Ok(match source.dtype {
        DType::F64 => Box::new(Pack::<f64>::new(plan, source, size, to)?),
        DType::F32 => Box::new(Pack::<f32>::new(plan, source, size, to)?),
        DType::F16 => Box::new(Pack::<f16>::new(plan, source, size, to)?),
        DType::BF16 => Box::new(Pack::<bf16>::new(plan, source, size, to)?),
        DType::I8 => Box::new(Pack::<i8>::new(plan, source, size, to)?),
        other => return Err(Unsupported::new(format!("there are no products of {other}"))),
    })
}

/// A right operand on its way into panels.
#[derive(Debug)]
struct Pack<T: Element> {
    source: Operand,
    kernel: &'static MicroKernel<T>,
    to: SlotId,
}

impl<T: Element> Pack<T> {
    fn new(
        plan: &Plan,
        source: &MatrixView,
        size: [usize; 2],
        to: SlotId,
    ) -> Result<Self, Unsupported> {
        let source = Operand::new(plan, source, ([1, 1], [0, 0]), size)?;
        let Layout::Packed { name, .. } = plan.slot(to).layout else {
            return Err(Unsupported::new("packing into a slot that has no packed form"));
        };
        let kernel = packed_as::<T>(name)?;
        assert_eq!(
            plan.slot(to).bytes(),
            kernel.packed_b_bytes(source.shape),
            "the plan asks for the packing that this back end declares"
        );
        Ok(Self { source, kernel, to })
    }
}

impl<T: Element> Runnable for Pack<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the plan's slots are apart, and the packed one is as long as `new` checked.
        unsafe {
            let to = slots.slice_mut(self.to, self.kernel.packed_b_bytes(self.source.shape));
            self.kernel.pack_b(pool, self.source.view(slots, 0), to);
        }
    }
}
