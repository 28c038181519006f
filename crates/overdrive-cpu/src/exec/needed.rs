//! Whether a call needs a step: its condition, over weights that earlier steps wrote.
#![allow(unsafe_code)] // Elements of slots.

use overdrive_ir::Plan;
use overdrive_ir::plan::OnlyIf;

use crate::slots::SlotTable;

/// Whether a step of the plan must run in this call.
pub(super) fn is_needed(plan: &Plan, index: usize, slots: &SlotTable) -> bool {
    let Some(OnlyIf { weights, shape: [rows, columns], column }) = plan.steps[index].only_if else {
        return true;
    };
    let width = plan.slot(weights).ty.dtype.bits() / 8;
    let (weights, row) = (slots.get(weights).cast_const(), columns * width);
    // SAFETY: an earlier step wrote the weights, as many as the condition says.
    let weights = unsafe { std::slice::from_raw_parts(weights, rows * row) };
    let of_row = |row: &[u8]| row[column * width..][..width].iter().any(|&byte| byte != 0);
    weights.chunks_exact(row).any(of_row)
}
