//! `Strided`: a view of a slot as a kernel needs it, in bytes.
#![allow(unsafe_code)] // Addresses inside of slots.

use overdrive_ir::plan::View;
use overdrive_ir::{DType, SlotId};

use crate::slots::SlotTable;

/// The layout of an operand or a result.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    slot: SlotId,
    start: isize,
    pub(super) dtype: DType,
    pub(super) sizes: Vec<usize>,
    /// Strides in elements.
    pub(super) strides: Vec<i64>,
}

impl Strided {
    /// The place of a view whose elements are whole bytes.
    pub(super) fn new(view: &View) -> Self {
        let dtype = view.ty.dtype;
        assert!(dtype.bits().is_multiple_of(8), "elements of less than a byte go to the reference");
        let start = view.offset as isize * (dtype.bits() / 8) as isize;
        let (sizes, strides) = (view.ty.sizes(), view.strides.clone());
        Self { slot: view.slot, start, dtype, sizes, strides }
    }

    /// Bytes of an element.
    pub(super) fn width(&self) -> usize {
        self.dtype.bits() / 8
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The first element.
    pub(super) fn get(&self, slots: &SlotTable) -> *mut u8 {
        slots.get(self.slot).wrapping_offset(self.start)
    }
}

/// Calls of a signed or unsigned integer at an address, saturated to i64.
///
/// # Safety
/// `at` holds an element of `dtype`, an integer type.
pub(super) unsafe fn read_index(dtype: DType, at: *const u8) -> i64 {
    // SAFETY: the element at `at` is of `dtype`, and each arm reads that type.
    unsafe {
        match dtype {
            DType::I64 => at.cast::<i64>().read(),
            DType::I32 => at.cast::<i32>().read().into(),
            DType::I16 => at.cast::<i16>().read().into(),
            DType::I8 => at.cast::<i8>().read().into(),
            DType::U64 => i64::try_from(at.cast::<u64>().read()).unwrap_or(i64::MAX),
            DType::U32 => at.cast::<u32>().read().into(),
            DType::U16 => at.cast::<u16>().read().into(),
            DType::U8 => at.read().into(),
            other => unreachable!("{other} is not an index type of whole bytes"),
        }
    }
}
