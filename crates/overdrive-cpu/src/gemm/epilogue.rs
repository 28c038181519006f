//! What happens to finished blocks of the product.

use super::view::ViewMut;

/// A finished block of accumulators, in a worker's cache: rows and columns `row0..row0 + rows` and
/// `col0..col0 + cols` of matrix `batch` of the product.
#[derive(Debug)]
pub struct Block<'a, A> {
    /// Row `i` is `values[i * row_stride..][..cols]`; what lies between rows means nothing.
    pub values: &'a mut [A],
    /// Elements from one row to the next.
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
}

impl<A> Block<'_, A> {
    /// The block's row `i`, counted from `row0`.
    pub fn row(&mut self, i: usize) -> &mut [A] {
        &mut self.values[i * self.row_stride..][..self.cols]
    }
}

/// Consumes the product block by block: applies what follows it and stores the result where it belongs.
///
/// Every element of the product is delivered exactly once, from several threads at once; so an implementation
/// that writes each element's result to a place of its own needs no lock.
pub trait Epilogue<A>: Sync {
    /// Bytes of scratch that [`apply`](Self::apply) wants.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Takes over a finished block. `scratch` has [`scratch_bytes`](Self::scratch_bytes) bytes, starts on a
    /// 64-byte boundary, and holds anything.
    fn apply(&self, block: Block<'_, A>, scratch: &mut [u8]);
}

/// Where the product goes.
#[derive(Debug)]
pub enum Output<'a, A> {
    /// To memory, as it is.
    Store(ViewMut<'a, A>),
    /// Through an epilogue, as the product of this shape, `[batch0, batch1, rows, cols]`.
    Apply([usize; 4], &'a dyn Epilogue<A>),
}

impl<A> std::fmt::Debug for dyn Epilogue<A> + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epilogue({} bytes of scratch)", self.scratch_bytes())
    }
}
