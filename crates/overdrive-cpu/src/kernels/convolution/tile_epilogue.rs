//! The epilogue of the sums of a tile, of the results and of their folds.
#![allow(unsafe_code)] // Addresses of slots and of scratch.

#[cfg(target_arch = "x86_64")]
use crate::loops::Columns;
use crate::loops::{AccumulatorTile, Affine, CompiledEpilogue};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// An epilogue, by the simplest means that it can be computed by.
pub(super) enum TileEpilogue {
    Affine(Box<Affine>),
    #[cfg(target_arch = "x86_64")]
    Columns(Box<Columns>),
    Program(Box<CompiledEpilogue>),
}

impl TileEpilogue {
    /// # Safety
    /// The sums can be read, what becomes of them belongs to this task, and there are
    /// [`scratch_bytes`](Self::scratch_bytes).
    pub(super) unsafe fn apply(&self, tile: AccumulatorTile, slots: &SlotTable, scratch: *mut u8) {
        // SAFETY: the sums can be read, their results are this task's, and the scratch has what the
        // program needs.
        unsafe {
            match self {
                Self::Affine(affine) => affine.apply(slots, tile),
                #[cfg(target_arch = "x86_64")]
                Self::Columns(columns) => columns.apply(slots, tile),
                Self::Program(program) => {
                    let scratch = std::slice::from_raw_parts_mut(scratch, program.scratch_bytes());
                    program.apply(slots, tile, scratch);
                }
            }
        }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        match self {
            Self::Affine(_) => 0,
            #[cfg(target_arch = "x86_64")]
            Self::Columns(_) => 0,
            Self::Program(program) => program.scratch_bytes(),
        }
    }

    pub(super) fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the plan lets a step write only bytes that no operand of it shares.
        unsafe {
            match self {
                Self::Affine(affine) => affine.prepare(pool, slots),
                #[cfg(target_arch = "x86_64")]
                Self::Columns(columns) => columns.prepare(pool, slots),
                Self::Program(_) => {}
            }
        }
    }
}
