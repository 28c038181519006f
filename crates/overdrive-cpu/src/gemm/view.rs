//! Batches of matrices with arbitrary strides: how operands and results lie in memory.

/// A read-only batch of matrices, `shape = [batch0, batch1, rows, cols]`, element `[i, j, r, c]` at
/// `data[i * strides[0] + j * strides[1] + r * strides[2] + c * strides[3]]`.
///
/// Two batch axes cover attention's `[batch, head]`, whose strides do not collapse when heads are
/// interleaved. A stride of 0 repeats a row, a column or a matrix.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    pub(super) data: &'a [T],
    pub(super) shape: [usize; 4],
    pub(super) strides: [usize; 4],
}

impl<'a, T> View<'a, T> {
    /// A view of `data`; see [`View`] for the meaning of `shape` and `strides`.
    ///
    /// # Panics
    /// If an element would lie outside of `data`.
    pub fn new(data: &'a [T], shape: [usize; 4], strides: [usize; 4]) -> Self {
        assert_inside(data.len(), shape, strides);
        Self { data, shape, strides }
    }

    /// One matrix, row after row without gaps.
    ///
    /// # Panics
    /// If `data` holds fewer than `rows * cols` elements.
    pub fn matrix(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::new(data, [1, 1, rows, cols], [0, 0, cols, 1])
    }

    /// The same memory with rows and columns exchanged.
    pub fn transposed(mut self) -> Self {
        self.shape.swap(2, 3);
        self.strides.swap(2, 3);
        self
    }

    /// The number of rows of each matrix.
    pub fn rows(&self) -> usize {
        self.shape[2]
    }

    /// The number of columns of each matrix.
    pub fn cols(&self) -> usize {
        self.shape[3]
    }

    /// The first element of matrix `[i, j]`; a batch axis of length 1 is repeated.
    pub(super) fn matrix_at(&self, batch: [usize; 2]) -> *const T {
        self.data.as_ptr().wrapping_add(batch_offset(self.shape, self.strides, batch))
    }
}

/// A batch of matrices to write; shape and strides as in [`View`], and no two elements share
/// memory.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) shape: [usize; 4],
    pub(super) strides: [usize; 4],
}

impl<'a, T> ViewMut<'a, T> {
    /// A view of `data`; see [`View`] for the meaning of `shape` and `strides`.
    ///
    /// # Panics
    /// If an element would lie outside of `data`, or if two elements might share memory.
    pub fn new(data: &'a mut [T], shape: [usize; 4], strides: [usize; 4]) -> Self {
        assert_inside(data.len(), shape, strides);
        assert!(
            is_injective(shape, strides),
            "elements of an output overlap: shape {shape:?}, strides {strides:?}"
        );
        Self { data, shape, strides }
    }

    /// One matrix, row after row without gaps.
    ///
    /// # Panics
    /// If `data` holds fewer than `rows * cols` elements.
    pub fn matrix(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::new(data, [1, 1, rows, cols], [0, 0, cols, 1])
    }
}

/// Offset of matrix `batch` in a view; a batch axis of length 1 is repeated.
pub(super) fn batch_offset(shape: [usize; 4], strides: [usize; 4], batch: [usize; 2]) -> usize {
    (0..2).filter(|&axis| shape[axis] > 1).map(|axis| batch[axis] * strides[axis]).sum()
}

fn assert_inside(len: usize, shape: [usize; 4], strides: [usize; 4]) {
    if shape.contains(&0) {
        return;
    }
    let last = (0..4).try_fold(0_usize, |last, axis| {
        last.checked_add((shape[axis] - 1).checked_mul(strides[axis])?)
    });
    assert!(
        last.is_some_and(|last| last < len),
        "a view of {shape:?} with strides {strides:?} reaches beyond its {len} elements"
    );
}

/// Whether every axis steps over all that the axes with smaller strides reach. That is sufficient
/// for distinct elements. It holds for every layout that slicing and transposing a dense tensor can
/// give.
fn is_injective(shape: [usize; 4], strides: [usize; 4]) -> bool {
    let mut axes = [0, 1, 2, 3].map(|axis| (strides[axis], shape[axis]));
    axes.sort_unstable();
    let mut reach = 0;
    shape.contains(&0)
        || axes.iter().filter(|&&(_, len)| len > 1).all(|&(stride, len)| {
            let steps_over = stride > reach;
            reach += stride * (len - 1);
            steps_over
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_overlap_are_refused() {
        assert!(is_injective([1, 1, 3, 4], [0, 0, 4, 1]));
        assert!(is_injective([2, 3, 5, 4], [60, 4, 12, 1]), "interleaved heads");
        assert!(!is_injective([1, 1, 3, 4], [0, 0, 3, 1]));
        assert!(!is_injective([2, 1, 3, 4], [0, 0, 4, 1]));
    }

    #[test]
    #[should_panic(expected = "reaches beyond its 11 elements")]
    fn a_view_beyond_its_data_is_refused() {
        View::matrix(&[0.0_f32; 11], 3, 4);
    }
}
