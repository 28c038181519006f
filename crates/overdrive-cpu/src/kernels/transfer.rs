//! Moving a block of elements between two strided layouts: the inner loop of everything that only
//! moves.
//!
//! Dimensions that both sides stride through as one are merged when the step is compiled. So the
//! remaining runs are as few and as long as possible. Invariant: elements move as bytes; no format
//! is looked at.
#![allow(unsafe_code)] // Raw pointers into slots; callers say that both blocks lie inside.

/// Bytes of a task, at least.
pub(super) const TASK_BYTES: usize = 32 << 10;

/// A block to move: sizes and strides of its remaining dimensions, outermost first, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    dims: Vec<TransferDim>,
    /// Bytes that lie side by side on both sides.
    run: usize,
    width: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct TransferDim {
    size: usize,
    from: isize,
    to: isize,
}

impl Transfer {
    /// `sizes` elements of `width` bytes; strides in elements.
    pub(super) fn new(sizes: &[usize], from: &[i64], to: &[i64], width: usize) -> Self {
        let bytes = |stride: i64| stride as isize * width as isize;
        let mut dims: Vec<TransferDim> = Vec::new();
        for ((&size, &from), &to) in sizes.iter().zip(from).zip(to) {
            let dim = TransferDim { size, from: bytes(from), to: bytes(to) };
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(outer)
                    if outer.from == dim.from * size as isize
                        && outer.to == dim.to * size as isize =>
                {
                    *outer = TransferDim { size: outer.size * size, ..dim };
                }
                _ => dims.push(dim),
            }
        }
        let mut run = width;
        if let Some(&TransferDim { size, from, to }) = dims.last()
            && from == width as isize
            && to == width as isize
        {
            run = size * width;
            dims.pop();
        }
        Self { dims, run, width }
    }

    /// Elements of the block.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().map(|dim| dim.size).product::<usize>() * (self.run / self.width)
    }

    /// Moves the block whose first elements are `from` and `to`.
    ///
    /// # Safety
    /// All of the block can be read on one side and written on the other, and the sides share no
    /// bytes.
    pub(super) unsafe fn run(&self, from: *const u8, to: *mut u8) {
        // SAFETY: all indices of all dimensions are elements of the block, on both sides, which
        // share no bytes.
        unsafe { self.along(&self.dims, from, to) }
    }

    /// How many parts `run_part` takes: each moves enough to be a task.
    pub(super) fn parts(&self) -> usize {
        let (count, each) = self.outermost();
        count.div_ceil(indices_of_a_part(each))
    }

    /// Moves some indices of the outermost dimension.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub(super) unsafe fn run_part(&self, part: usize, from: *const u8, to: *mut u8) {
        let (count, each) = self.outermost();
        let length = indices_of_a_part(each);
        let (first, end) = (part * length, count.min((part + 1) * length));
        let at = |stride: isize| stride * first as isize;
        // SAFETY: `first..end` are indices of the outermost dimension, so both sides have their
        // part of the block.
        unsafe {
            match self.dims.split_first() {
                None => to.add(first).copy_from_nonoverlapping(from.add(first), end - first),
                Some((dim, [])) => {
                    let some = TransferDim { size: end - first, ..*dim };
                    self.along(&[some], from.offset(at(dim.from)), to.offset(at(dim.to)));
                }
                Some((dim, inner)) => {
                    for i in first as isize..end as isize {
                        self.along(inner, from.offset(i * dim.from), to.offset(i * dim.to));
                    }
                }
            }
        }
    }

    /// Indices of the outermost dimension, and the bytes that each of them moves: of a block that
    /// lies side by side its bytes.
    fn outermost(&self) -> (usize, usize) {
        match self.dims.split_first() {
            None => (self.run, 1),
            Some((dim, inner)) => {
                (dim.size, inner.iter().map(|dim| dim.size).product::<usize>() * self.run)
            }
        }
    }

    unsafe fn along(&self, dims: &[TransferDim], from: *const u8, to: *mut u8) {
        // SAFETY: each dimension stays inside of the block, of which all can be read and written.
        unsafe {
            match dims {
                [] => to.copy_from_nonoverlapping(from, self.run),
                [dim] if self.run == self.width => match self.width {
                    1 => elements::<u8>(*dim, from, to),
                    2 => elements::<u16>(*dim, from, to),
                    4 => elements::<u32>(*dim, from, to),
                    _ => elements::<u64>(*dim, from, to),
                },
                [dim, inner @ ..] => {
                    for i in 0..dim.size as isize {
                        self.along(inner, from.offset(i * dim.from), to.offset(i * dim.to));
                    }
                }
            }
        }
    }
}

/// Number of indices in a task, if each index moves `each` bytes.
fn indices_of_a_part(each: usize) -> usize {
    TASK_BYTES.div_ceil(each.max(1))
}

/// Single elements, not side by side.
unsafe fn elements<T: Copy>(dim: TransferDim, from: *const u8, to: *mut u8) {
    for i in 0..dim.size as isize {
        // SAFETY: each index of the dimension is an element of the block, on both sides.
        unsafe { *to.offset(i * dim.to).cast::<T>() = *from.offset(i * dim.from).cast::<T>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_dimensions_become_one_run() {
        let dense = Transfer::new(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1], 4);
        assert_eq!((dense.dims.len(), dense.run, dense.elements()), (0, 96, 24));
        let rows = Transfer::new(&[2, 3, 4], &[100, 4, 1], &[12, 4, 1], 4);
        assert_eq!((rows.dims.len(), rows.run, rows.elements()), (1, 48, 24));
        let transposed = Transfer::new(&[2, 3], &[1, 2], &[3, 1], 2);
        assert_eq!((transposed.dims.len(), transposed.run, transposed.elements()), (2, 2, 6));
    }

    /// A number that fills a block, rows of a wider matrix, and a block that lies side by side.
    #[test]
    fn parts_are_tasks_and_move_everything_once() {
        let [rows, columns] = [70usize, 1000];
        let wide: Vec<u32> = (0..rows as u32 * 1100).collect();
        for (from, least) in [([0, 0], 9), ([1100, 1], 9), ([1000, 1], 9)] {
            let transfer = Transfer::new(&[rows, columns], &from, &[1000, 1], 4);
            let parts = transfer.parts();
            assert!((least - 1..=10).contains(&parts), "{from:?}: {parts}");
            let mut to = vec![u32::MAX; rows * columns];
            for part in 0..parts {
                // SAFETY: both sides hold the block.
                unsafe { transfer.run_part(part, wide.as_ptr().cast(), to.as_mut_ptr().cast()) };
            }
            let expected = (0..rows * columns)
                .map(|i| ((i / columns) as i64 * from[0] + (i % columns) as i64 * from[1]) as u32);
            assert!(to.iter().copied().eq(expected), "{from:?}");
        }
    }

    #[test]
    fn a_transposed_block_arrives_transposed() {
        let from: Vec<u16> = (0..6).collect();
        let mut to = vec![0u16; 6];
        let transfer = Transfer::new(&[2, 3], &[1, 2], &[3, 1], 2);
        // SAFETY: both sides hold 2 x 3 elements.
        unsafe { transfer.run(from.as_ptr().cast(), to.as_mut_ptr().cast()) };
        assert_eq!(to, [0, 2, 4, 1, 3, 5]);
    }
}
