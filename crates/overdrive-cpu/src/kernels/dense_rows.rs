//! Rows of numbers that a slot holds, as dense rows of f32. Kernels on f32 make them of operands
//! with any strides and of a lower precision.
#![allow(unsafe_code)] // Slices over slots and rooms.

use overdrive_ir::plan::View;
use overdrive_ir::{DType, row_major};

use super::place::Strided;
use super::transfer::Transfer;
use crate::exec::{Format, Unsupported};
use crate::gemm::{Element, Widen};
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::{Apart, Pool};

/// Formats that become f32.
pub(super) trait Number: Format + Widen<f32> + Element<Acc = f32> {}

impl<T: Format + Widen<f32> + Element<Acc = f32>> Number for T {}

/// The elements at `start`.
///
/// # Safety
/// They exist, initialised, and nobody else touches them while the slice lives.
pub(super) unsafe fn numbers_at<'a, T>(start: *mut T, len: usize) -> &'a mut [T] {
    // SAFETY: `len` elements exist, initialised, and nobody else touches them while the slice
    // lives.
    if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(start, len) } }
}

/// Rows of numbers that a slot holds, and where they are when they are f32 and side by side.
pub(super) struct DenseRows<T> {
    place: Strided,
    /// From the slot to dense rows, where the slot's are not.
    transfer: Option<Transfer>,
    dense: AlignedBytes,
    wide: AlignedBytes,
    elements: usize,
    format: std::marker::PhantomData<T>,
}

impl<T: Number> DenseRows<T> {
    pub(super) fn new(view: &View) -> Result<Self, Unsupported> {
        let (place, elements) = (Strided::new(view), view.ty.elements());
        let dense: Vec<i64> =
            row_major(&place.sizes).into_iter().map(|stride| stride as i64).collect();
        let transfer = (!view.is_dense())
            .then(|| Transfer::new(&place.sizes, &place.strides, &dense, place.width()));
        let room = |wanted: bool, width: usize| {
            let bytes = if wanted { elements * width } else { 0 };
            AlignedBytes::filled(bytes, 0).map_err(|e| Unsupported::new(e.to_string()))
        };
        let dense = room(transfer.is_some(), place.width())?;
        let wide = room(T::DTYPE != DType::F32, size_of::<f32>())?;
        Ok(Self { place, transfer, dense, wide, elements, format: std::marker::PhantomData })
    }

    /// The first of the dense rows.
    fn dense(&self, slots: &SlotTable) -> *mut u8 {
        if self.transfer.is_some() { self.dense.start() } else { self.place.get(slots) }
    }

    /// The first of the dense rows of f32, which have [`elements`](Self::elements).
    pub(super) fn wide(&self, slots: &SlotTable) -> *mut f32 {
        if T::DTYPE == DType::F32 { self.dense(slots).cast() } else { self.wide.start().cast() }
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// Makes dense rows of f32 of the slot's elements.
    pub(super) fn read(&self, pool: &Pool, slots: &SlotTable) {
        if let Some(transfer) = &self.transfer {
            // SAFETY: the view lies in its slot, and the room has all of its elements.
            pool.run(transfer.parts(), |part, _| unsafe {
                transfer.run_part(part, self.place.get(slots), self.dense.start());
            });
        }
        if T::DTYPE != DType::F32 {
            by_chunks(
                pool,
                self.elements,
                (self.dense(slots).cast::<T>(), self.wide.start().cast()),
                T::widen,
            );
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.dense.len() + self.wide.len()
    }
}

/// Elements that are widened by one task.
const CHUNK: usize = 16 << 10;

/// Calls `convert` with the chunks of two arrays of `elements`.
fn by_chunks<A: Copy, B: Copy>(
    pool: &Pool,
    elements: usize,
    (from, to): (*mut A, *mut B),
    convert: impl Fn(&[A], &mut [B]) + Sync,
) {
    let (from, to) = (Apart::new(from), Apart::new(to));
    pool.run(elements.div_ceil(CHUNK), |task, _| {
        let (first, len) = (task * CHUNK, (elements - task * CHUNK).min(CHUNK));
        // SAFETY: both arrays have their elements, and chunks are apart.
        unsafe {
            let from = std::slice::from_raw_parts(from.at(first), len);
            convert(from, std::slice::from_raw_parts_mut(to.at(first), len));
        }
    });
}
