//! The epilogue: what happens to finished blocks of the product.
#![allow(unsafe_code)] // Rows of a block of sums, whose neighbours other threads may write.

use std::marker::PhantomData;

use super::view::ViewMut;

/// A finished block of accumulators, in a worker's cache: rows and columns `row0..row0 + rows` and
/// `col0..col0 + cols` of matrix `batch` of the product.
#[derive(Debug)]
pub struct AccumulatorBlock<'a, A> {
    start: *mut A,
    /// Elements from one row to the next; those between rows are not the block's.
    pub row_stride: usize,
    /// Indices on the two batch axes.
    pub batch: [usize; 2],
    /// The first row's index in the product.
    pub row0: usize,
    /// The first column's index in the product.
    pub col0: usize,
    /// Rows of the block.
    pub rows: usize,
    /// Columns of the block.
    pub cols: usize,
    values: PhantomData<&'a mut A>,
}

impl<A> AccumulatorBlock<'_, A> {
    /// A block of the sums at `start`, with the place of `part`.
    ///
    /// # Safety
    /// The rows of the block are initialised, and nobody else's while it lives.
    pub(crate) unsafe fn new(start: *mut A, row_stride: usize, part: ProductPart) -> Self {
        let ProductPart { batch, row: row0, col: col0, rows, cols } = part;
        Self { start, row_stride, batch, row0, col0, rows, cols, values: PhantomData }
    }

    /// The first element.
    pub fn start(&self) -> *const A {
        self.start
    }

    /// The block's row `i`, counted from `row0`.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn row(&mut self, i: usize) -> &mut [A] {
        assert!(i < self.rows, "row {i} of a block of {}", self.rows);
        // SAFETY: as `new` was promised; the slice borrows the block.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.row_stride), self.cols) }
    }
}

/// A part of C.
pub(crate) struct ProductPart {
    pub batch: [usize; 2],
    pub row: usize,
    pub col: usize,
    pub rows: usize,
    pub cols: usize,
}

/// Consumes the product block by block: applies the epilogue and stores the result where it
/// belongs.
///
/// Every element of the product is delivered exactly once, from several threads at once. So an
/// implementation needs no lock if it writes each element's result to a place of its own.
pub trait Epilogue<A>: Sync {
    /// Bytes of scratch that [`apply`](Self::apply) wants.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Takes over a finished block. `scratch` has [`scratch_bytes`](Self::scratch_bytes) bytes,
    /// starts on a 64-byte boundary, and holds anything.
    fn apply(&self, block: AccumulatorBlock<'_, A>, scratch: &mut [u8]);
}

/// Destination of the product.
#[derive(Debug)]
pub enum ProductOutput<'a, A> {
    /// Stored to memory, unchanged.
    Store(ViewMut<'a, A>),
    /// Through an epilogue, as the product of this shape, `[batch0, batch1, rows, cols]`.
    Apply([usize; 4], &'a dyn Epilogue<A>),
    /// Through an epilogue that writes results where the view is, element for element. If the
    /// elements of a row are adjacent, sums can wait right there, as in a product alone. The
    /// epilogue gets them there, or elsewhere.
    InPlace(ViewMut<'a, A>, &'a dyn Epilogue<A>),
}

impl<A> ProductOutput<'_, A> {
    /// `[batch0, batch1, rows, cols]` of the product.
    pub(crate) fn shape(&self) -> [usize; 4] {
        match self {
            ProductOutput::Apply(shape, _) => *shape,
            ProductOutput::Store(view) | ProductOutput::InPlace(view, _) => view.shape,
        }
    }
}

impl<A> std::fmt::Debug for dyn Epilogue<A> + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epilogue({} bytes of scratch)", self.scratch_bytes())
    }
}
