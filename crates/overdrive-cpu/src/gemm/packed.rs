//! B packed once, for weights that many products share.
#![allow(unsafe_code)] // Threads write disjoint parts of one buffer.

use super::columns::Columns;
use super::kernel::{Element, MicroKernel};
use super::panel::OperandLines;
use super::schedule::depth;
use super::view::View;
use crate::threads::{Apart, Pool};

/// A batch of B matrices in the panels of one kernel: for each block of k, panel after panel. The
/// bytes are worth nothing to another kernel, or on a CPU with other caches.
#[derive(Debug)]
pub struct Packed<'a, T: Element> {
    kernel: &'static MicroKernel<T>,
    bytes: &'a [u8],
    shape: [usize; 4],
}

impl<T: Element> Clone for Packed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for Packed<'_, T> {}

impl<T: Element> MicroKernel<T> {
    /// The bytes that [`pack_b`](Self::pack_b) fills for B of this shape, `[batch0, batch1, k, n]`.
    pub fn packed_b_bytes(&self, shape: [usize; 4]) -> usize {
        shape[0] * shape[1] * self.packed_matrix_bytes(shape)
    }

    fn packed_matrix_bytes(&self, [_, _, k, n]: [usize; 4]) -> usize {
        let (kc, bytes) = (depth(self, k), |k| self.block_bytes(self.b, n, k));
        // A B without k is a block without k: it has only the initial values of sums.
        k / kc * bytes(kc) + if k == 0 || k % kc > 0 { bytes(k % kc) } else { 0 }
    }

    /// Packs B into `to`.
    ///
    /// # Panics
    /// If `to` is not as [`Packed::new`] wants it.
    pub fn pack_b<'a>(
        &'static self,
        pool: &Pool,
        b: View<'_, T>,
        to: &'a mut [u8],
    ) -> Packed<'a, T> {
        let start = Apart::new(to.as_mut_ptr());
        let packed = Packed::new(self, to, b.shape);
        let [_, inner, k, n] = b.shape;
        let kc = depth(self, k);
        // A task is a block of k, or a part of one, large enough to be worth a thread's while.
        let cols = (65536 / kc).next_multiple_of(self.b.width);
        let (blocks, parts) = (k.div_ceil(kc).max(1), n.div_ceil(cols));
        pool.run(b.shape[0] * inner * blocks * parts, |task, _| {
            let (matrix, part) = (task / (blocks * parts), task % (blocks * parts));
            let (k0, col) = (part / parts * kc, part % parts * cols);
            let batch = [matrix / inner, matrix % inner];
            let block = OperandLines {
                from: b.matrix_at(batch).wrapping_add(k0 * b.strides[2] + col * b.strides[3]),
                lines: (n - col).min(cols),
                line_stride: b.strides[3],
                k: (k - k0).min(kc),
                k_stride: b.strides[2],
            };
            // SAFETY: the view reaches all of the block; each task's panels have a place of their
            // own.
            unsafe { (self.pack)(block, self.b, start.at(packed.offset(batch, k0, col))) }
        });
        packed
    }
}

impl<'a, T: Element> Packed<'a, T> {
    /// B as [`MicroKernel::pack_b`] wrote it to `bytes`, of this shape, `[batch0, batch1, k, n]`.
    ///
    /// # Panics
    /// If `bytes` does not have [`MicroKernel::packed_b_bytes`], or does not start on a 64-byte
    /// boundary.
    pub fn new(kernel: &'static MicroKernel<T>, bytes: &'a [u8], shape: [usize; 4]) -> Self {
        let expected = kernel.packed_b_bytes(shape);
        assert_eq!(bytes.len(), expected, "bytes of a B of {shape:?} packed for {}", kernel.name());
        assert!(
            expected == 0 || bytes.as_ptr().addr().is_multiple_of(64),
            "a packed B starts on a 64-byte boundary"
        );
        Self { kernel, bytes, shape }
    }

    /// The kernel whose panels these are.
    pub fn kernel(&self) -> &'static MicroKernel<T> {
        self.kernel
    }

    /// `[batch0, batch1, k, n]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Offset of the panels from column `col` on, in the block of k that begins at `k0`.
    fn offset(&self, batch: [usize; 2], k0: usize, col: usize) -> usize {
        let [outer, inner, k, n] = self.shape;
        let index = |axis: usize, len: usize| if len > 1 { batch[axis] } else { 0 };
        let matrix = index(0, outer) * inner + index(1, inner);
        let kernel = self.kernel;
        let (kc, panel) = (depth(kernel, k), kernel.b);
        let before = k0 / kc * kernel.block_bytes(panel, n, kc);
        let within = col / panel.width * panel.len((k - k0).min(kc)) * kernel.packed_bytes;
        matrix * kernel.packed_matrix_bytes(self.shape) + before + within
    }

    /// The panels of a block; see [`offset`](Self::offset).
    pub(super) fn panels(&self, batch: [usize; 2], k0: usize, col: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(self.offset(batch, k0, col))
    }
}

/// The right operand.
#[derive(Debug, Clone, Copy)]
pub enum Rhs<'a, T: Element> {
    /// In its own layout.
    Strided(View<'a, T>),
    /// Packed before.
    Packed(Packed<'a, T>),
    /// Columns that exist only while they are packed, of one matrix for the whole batch.
    Made(&'a dyn Columns<T>),
}

impl<'a, T: Element> From<View<'a, T>> for Rhs<'a, T> {
    fn from(view: View<'a, T>) -> Self {
        Self::Strided(view)
    }
}

impl<'a, T: Element> From<Packed<'a, T>> for Rhs<'a, T> {
    fn from(packed: Packed<'a, T>) -> Self {
        Self::Packed(packed)
    }
}

impl<T: Element> Rhs<'_, T> {
    pub(super) fn shape(&self) -> [usize; 4] {
        match self {
            Self::Strided(view) => view.shape,
            Self::Packed(packed) => packed.shape(),
            Self::Made(columns) => [1, 1, columns.shape()[0], columns.shape()[1]],
        }
    }
}
