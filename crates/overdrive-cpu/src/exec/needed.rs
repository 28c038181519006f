//! Whether a call needs a step: its condition, over weights that earlier steps wrote.
#![allow(unsafe_code)] // Elements of slots.

use overdrive_ir::plan::{OnlyIf, Step};

use crate::slots::SlotTable;

/// Whether the step must run in this call.
pub(super) fn is_needed(step: &Step, slots: &SlotTable) -> bool {
    let Some(OnlyIf { weights, column }) = &step.only_if else { return true };
    let width = weights.ty.dtype.bits() / 8;
    let (sizes, strides) = (weights.ty.sizes(), &weights.strides);
    let last = sizes.len() - 1;
    let rows: usize = sizes[..last].iter().product();
    let start = weights.offset + *column as i64 * strides[last];
    (0..rows).any(|row| {
        let (mut rest, mut at) = (row, start);
        for dim in (0..last).rev() {
            at += (rest % sizes[dim]) as i64 * strides[dim];
            rest /= sizes[dim];
        }
        let from = slots.get(weights.slot).wrapping_offset(at as isize * width as isize);
        // SAFETY: an earlier step wrote the weights, which the view lies in.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast_const(), width) };
        bytes.iter().any(|&byte| byte != 0)
    })
}
