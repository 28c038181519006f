//! `dynamic_slice` and `dynamic_update_slice`: a block at a position that is data.
// Raw pointers into slots; starts are clamped, so that every block lies inside.
#![allow(unsafe_code)]

use overdrive_ir::Prim;
use overdrive_ir::plan::View;

use super::line::{Compile, NamedKernel};
use super::place::{Strided, read_index};
use super::transfer::Transfer;
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Offset of a block of `sizes` in `whole`, in bytes; starts are clamped so that it fits.
fn start(whole: &Strided, sizes: &[usize], starts: &Strided, slots: &SlotTable) -> isize {
    let mut at = 0;
    for (d, size) in sizes.iter().enumerate() {
        let offset = d as isize * starts.strides[0] as isize * starts.width() as isize;
        // SAFETY: starts hold one number per dimension.
        let asked = unsafe { read_index(starts.dtype, starts.get(slots).offset(offset)) };
        at += asked.clamp(0, (whole.sizes[d] - size) as i64) as isize * whole.strides[d] as isize;
    }
    at * whole.width() as isize
}

/// `dynamic_slice`.
pub(super) const SLICE: NamedKernel = NamedKernel::moving(
    "dynamic_slice",
    Compile::Prim(|prim, operands, results| match (prim, operands, results) {
        (Prim::DynamicSlice { .. }, &[operand, starts], &[Some(result)]) => {
            Some(Box::new(DynamicSlice::new([operand, starts], result)))
        }
        _ => None,
    }),
);

/// Compiled `dynamic_slice`.
#[derive(Debug)]
pub(super) struct DynamicSlice {
    operand: Strided,
    starts: Strided,
    result: Strided,
    block: Transfer,
}

impl DynamicSlice {
    pub(super) fn new([operand, starts]: [&View; 2], result: &View) -> Self {
        let [operand, starts, result] = [operand, starts, result].map(Strided::new);
        let block = Transfer::new(&result.sizes, &operand.strides, &result.strides, result.width());
        Self { operand, starts, result, block }
    }
}

impl Runnable for DynamicSlice {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if self.result.len() == 0 {
            return;
        }
        let at = start(&self.operand, &self.result.sizes, &self.starts, slots);
        // SAFETY: a clamped block lies inside of the operand, and the parts of the result are
        // apart.
        pool.run(self.block.parts(), |part, _| unsafe {
            self.block.run_part(part, self.operand.get(slots).offset(at), self.result.get(slots));
        });
    }
}

/// `dynamic_update_slice`.
pub(super) const UPDATE: NamedKernel = NamedKernel::moving(
    "dynamic_update_slice",
    Compile::Prim(|prim, operands, results| match (prim, operands, results) {
        (Prim::DynamicUpdateSlice, &[operand, update, starts], &[Some(result)]) => {
            Some(Box::new(DynamicUpdateSlice::new([operand, update, starts], result)))
        }
        _ => None,
    }),
);

/// Compiled `dynamic_update_slice`. If the plan lets the result take the operand's place, only the
/// update moves.
#[derive(Debug)]
pub(super) struct DynamicUpdateSlice {
    operand: Strided,
    update: Strided,
    starts: Strided,
    result: Strided,
    whole: Transfer,
    block: Transfer,
}

impl DynamicUpdateSlice {
    pub(super) fn new([operand, update, starts]: [&View; 3], result: &View) -> Self {
        let [operand, update, starts, result] = [operand, update, starts, result].map(Strided::new);
        let whole = Transfer::new(&result.sizes, &operand.strides, &result.strides, result.width());
        let block = Transfer::new(&update.sizes, &update.strides, &result.strides, result.width());
        Self { operand, update, starts, result, whole, block }
    }
}

impl Runnable for DynamicUpdateSlice {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if self.operand.get(slots) != self.result.get(slots) {
            // SAFETY: operand and result have their elements and share none.
            pool.run(self.whole.parts(), |part, _| unsafe {
                self.whole.run_part(part, self.operand.get(slots), self.result.get(slots));
            });
        }
        if self.update.len() == 0 {
            return;
        }
        let at = start(&self.result, &self.update.sizes, &self.starts, slots);
        // SAFETY: a clamped block lies inside of the result, and its parts are apart.
        pool.run(self.block.parts(), |part, _| unsafe {
            self.block.run_part(part, self.update.get(slots), self.result.get(slots).offset(at));
        });
    }
}
