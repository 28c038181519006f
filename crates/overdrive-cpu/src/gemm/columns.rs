//! A right operand whose columns exist only while they are packed: weights that are kept in another
//! form.

use std::ops::Range;

/// The columns of a matrix, made on demand.
pub trait Columns<T>: Sync {
    /// Rows and columns: `[k, n]`.
    fn shape(&self) -> [usize; 2];

    /// Writes the elements `k` of a column.
    fn fill(&self, column: usize, k: Range<usize>, to: &mut [T]);

    /// Writes the elements `k` of columns `first..first + width` side by side, element `p` of
    /// column `c` at `to[p * width + c]`. `false`, and nothing written, where no way is faster than
    /// one by one.
    fn fill_panel(&self, [first, width]: [usize; 2], k: Range<usize>, to: &mut [T]) -> bool {
        let _ = (first, width, k, to);
        false
    }
}

impl<T> std::fmt::Debug for dyn Columns<T> + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Columns({:?})", self.shape())
    }
}
