//! `Base`: where the first element of an operand is.

use crate::launch::Addresses;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::DType;
use overdrive_ir::plan::{MatrixView, SlotId};

/// An operand's slot, and the bytes from its beginning to an element.
#[derive(Copy, Clone, Debug)]
pub(super) struct Base {
    pub(super) slot: SlotId,
    pub(super) bytes: i64,
}

impl Base {
    /// The first element of a view.
    pub(super) fn of(view: &MatrixView) -> Self {
        Self::at(view.slot, view.dtype, view.offset)
    }

    /// Element `offset` of a slot.
    pub(super) fn at(slot: SlotId, dtype: DType, offset: i64) -> Self {
        Self { slot, bytes: offset * dtype.bits() as i64 / 8 }
    }

    /// Its address in a call.
    pub(super) fn address(self, addresses: &Addresses) -> CUdeviceptr {
        addresses.of(self.slot).wrapping_add_signed(self.bytes)
    }
}
