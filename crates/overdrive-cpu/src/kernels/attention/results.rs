//! The elements of operands and results of attention: their places, and rows that are rounded to
//! them.
#![allow(unsafe_code)] // Raw pointers into slots.

use crate::gemm::Narrow;
use crate::kernels::place::Strided;
use crate::slots::SlotTable;

/// The element at these indices, the first one of those that are left out: of a result at `[b, h,
/// query]` that of the first channel.
pub(super) fn element<T>(
    place: &Strided,
    at: impl IntoIterator<Item = usize>,
    slots: &SlotTable,
) -> *mut T {
    let offset: i64 = at.into_iter().zip(&place.strides).map(|(i, &s)| i as i64 * s).sum();
    place.get(slots).cast::<T>().wrapping_offset(offset as isize)
}

/// Rounds a row to where it belongs, `step` elements apart.
///
/// # Safety
/// `to` has the elements, which nobody else touches.
pub(super) unsafe fn store<T: Narrow>(row: &[T::Acc], to: *mut T, step: i64) {
    // SAFETY: `to` has an element for each of the row's, `step` apart, which nobody else touches.
    unsafe {
        if step == 1 {
            T::narrow(row, std::slice::from_raw_parts_mut(to, row.len()));
            return;
        }
        for (i, value) in row.iter().enumerate() {
            let to = to.offset(i as isize * step as isize);
            T::narrow(std::slice::from_ref(value), std::slice::from_mut(&mut *to));
        }
    }
}
