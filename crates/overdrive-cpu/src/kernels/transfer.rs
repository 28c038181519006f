//! Moving a block of elements between two strided layouts: the inner loop of everything that only
//! moves.
//!
//! Dimensions that both sides stride through as one are merged when the step is compiled, so that
//! what is left is as few and as long runs as there can be. Invariant: elements move as bytes; no
//! format is looked at.
#![allow(unsafe_code)] // Raw pointers into slots; callers say that both blocks lie inside.

/// A block to move: sizes and strides of what is left of its dimensions, outermost first, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    dims: Vec<Dim>,
    /// Bytes that lie side by side on both sides.
    run: usize,
    width: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Dim {
    size: usize,
    from: isize,
    to: isize,
}

impl Transfer {
    /// `sizes` elements of `width` bytes; strides in elements.
    pub(super) fn new(sizes: &[usize], from: &[i64], to: &[i64], width: usize) -> Self {
        let bytes = |stride: i64| stride as isize * width as isize;
        let mut dims: Vec<Dim> = Vec::new();
        for ((&size, &from), &to) in sizes.iter().zip(from).zip(to) {
            let dim = Dim { size, from: bytes(from), to: bytes(to) };
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(outer)
                    if outer.from == dim.from * size as isize
                        && outer.to == dim.to * size as isize =>
                {
                    *outer = Dim { size: outer.size * size, ..dim };
                }
                _ => dims.push(dim),
            }
        }
        let mut run = width;
        if let Some(&Dim { size, from, to }) = dims.last()
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
        // SAFETY: as the caller promised.
        unsafe { self.along(0, from, to) }
    }

    /// How many parts `run_part` takes.
    pub(super) fn parts(&self) -> usize {
        self.dims.first().map_or(1, |dim| dim.size)
    }

    /// Moves one index of the outermost dimension.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub(super) unsafe fn run_part(&self, part: usize, from: *const u8, to: *mut u8) {
        let Some(dim) = self.dims.first() else {
            // SAFETY: as the caller promised.
            return unsafe { self.along(0, from, to) };
        };
        let at = |stride: isize| stride * part as isize;
        // SAFETY: likewise.
        unsafe { self.along(1, from.offset(at(dim.from)), to.offset(at(dim.to))) }
    }

    unsafe fn along(&self, depth: usize, from: *const u8, to: *mut u8) {
        let dims = &self.dims[depth..];
        // SAFETY: as the caller of `run` promised; each dimension stays inside of the block.
        unsafe {
            match dims {
                [] => to.copy_from_nonoverlapping(from, self.run),
                [dim] if self.run == self.width => match self.width {
                    1 => elements::<u8>(*dim, from, to),
                    2 => elements::<u16>(*dim, from, to),
                    4 => elements::<u32>(*dim, from, to),
                    _ => elements::<u64>(*dim, from, to),
                },
                [dim, ..] => {
                    for i in 0..dim.size as isize {
                        self.along(depth + 1, from.offset(i * dim.from), to.offset(i * dim.to));
                    }
                }
            }
        }
    }
}

/// Single elements, not side by side.
unsafe fn elements<T: Copy>(dim: Dim, from: *const u8, to: *mut u8) {
    for i in 0..dim.size as isize {
        // SAFETY: as the caller of `run` promised.
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
