//! Sums of a few rows by some columns, which a task keeps in its worker's scratch and hands on when
//! they are finished.
#![allow(unsafe_code)] // A worker's scratch as the parts of it.

use std::ops::Range;

use crate::gemm::{AccumulatorBlock, ProductPart, SumsTarget};
use crate::threads::{PlacedParts, ScratchParts, Worker};

/// The parts of a worker's scratch while a task runs.
pub(super) struct Finish<'a> {
    target: &'a SumsTarget<'a, f32>,
    /// Rows of the product.
    m: usize,
    columns: Range<usize>,
    sums: *mut f32,
    /// Numbers that the task asked for.
    pub(super) own: &'a mut [f32],
    scratch: &'a mut [u8],
    _placed: PlacedParts<'a, 3>,
}

impl<'a> Finish<'a> {
    /// For `columns` of a product of `m` rows, with room for `own` numbers beside.
    pub(super) fn new(
        worker: &'a mut Worker<'_>,
        target: &'a SumsTarget<'a, f32>,
        (m, columns): (usize, Range<usize>),
        own: usize,
    ) -> Self {
        let wanted = target.epilogue().scratch_bytes();
        let placed = worker.scratch.place(ScratchParts::new([
            ("sums", m * columns.len() * size_of::<f32>()),
            ("numbers of the task's own", own * size_of::<f32>()),
            ("epilogue", wanted),
        ]));
        let [sums, owned, scratch] = placed.starts;
        // SAFETY: the parts have the requested lengths, are disjoint, initialised, and this task's.
        // Any bytes are valid numbers.
        let (own, scratch) = unsafe {
            (
                std::slice::from_raw_parts_mut(owned.cast(), own),
                std::slice::from_raw_parts_mut(scratch, wanted),
            )
        };
        Self { target, m, columns, sums: sums.cast(), own, scratch, _placed: placed }
    }

    /// The place of the sum of a row and of a column, counted from the first of the product. The
    /// row below is [`stride`](Self::stride) numbers on.
    pub(super) fn at(&self, row: usize, column: usize) -> *mut f32 {
        self.sums.wrapping_add(row * self.stride() + column - self.columns.start)
    }

    pub(super) fn stride(&self) -> usize {
        self.columns.len()
    }

    /// Hands the sums on.
    ///
    /// # Safety
    /// Every sum has been written.
    pub(super) unsafe fn done(self) {
        let (stride, Range { start: col, end }) = (self.stride(), self.columns);
        let part = ProductPart { batch: [0, 0], row: 0, col, rows: self.m, cols: end - col };
        // SAFETY: all sums of these columns are written; they lie in this task's scratch, `stride`
        // numbers a row.
        let block = unsafe { AccumulatorBlock::new(self.sums, stride, part) };
        self.target.epilogue().apply(block, self.scratch);
    }
}
