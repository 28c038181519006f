//! The micro-kernel for those who make their own blocks: attention and convolution, whose right
//! operands exist only as packed panels.
#![allow(unsafe_code)] // Raw pointers into packed panels; `simd.rs` says what they point to.

use super::kernel::{Element, MicroKernel};
use super::panel::{OperandLines, Panel};
use super::schedule;
use super::simd::PackedBlock;

/// A block of C and its operands. `a` and `b` are packed; C's rows lie `c_stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockProduct<A> {
    pub(crate) a: *const u8,
    pub(crate) b: *const u8,
    pub(crate) c: *mut A,
    pub(crate) c_stride: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) k: usize,
    /// Whether to add to what C holds, or to replace it.
    pub(crate) accumulate: bool,
}

impl<T: Element> MicroKernel<T> {
    /// Rows and columns of the tile that the kernel keeps in registers.
    pub(crate) fn tile(&self) -> [usize; 2] {
        [self.a.width, self.b.width]
    }

    /// Whether blocks are multiplied by a unit for whole tiles, which is several times as fast as
    /// vectors.
    pub(crate) fn has_tiles(&self) -> bool {
        self.a.k_multiple >= 32
    }

    /// The depth of blocks of k, as in products.
    pub(crate) fn depth(&self, k: usize) -> usize {
        schedule::depth(self, k)
    }

    /// The interleave of k in a panel of B: how many neighbouring k lie together. It is known where
    /// elements are packed as they are and nothing precedes them. Such a panel is its groups one
    /// after the other, zeros up to its end, and needs no packing.
    pub(crate) fn interleaves(&self) -> Option<usize> {
        (self.b.head == 0 && self.packed_bytes == size_of::<T>()).then_some(self.b.group)
    }

    /// Whether a panel of B can be the sums of an earlier product of this kernel, without packing.
    pub(crate) fn takes_sums(&self) -> bool {
        let Panel { group, k_multiple, .. } = self.b;
        group == 1 && k_multiple == 1 && self.packed_bytes == size_of::<T::Acc>()
    }

    /// The k of a panel of B with the zeros that fill it up.
    pub(crate) fn filled(&self, k: usize) -> usize {
        k.next_multiple_of(self.b.k_multiple)
    }

    /// Bytes of a packed block of `rows` rows of A over `k`.
    pub(crate) fn a_bytes(&self, rows: usize, k: usize) -> usize {
        self.block_bytes(self.a, rows, k)
    }

    /// Bytes of a packed block of `cols` columns of B over `k`.
    pub(crate) fn b_bytes(&self, cols: usize, k: usize) -> usize {
        self.block_bytes(self.b, cols, k)
    }

    /// Packs rows of A.
    ///
    /// # Safety
    /// The lines can be read, and `to` has [`a_bytes`](Self::a_bytes), aligned to 64.
    pub(crate) unsafe fn pack_a(&self, lines: OperandLines<T>, to: *mut u8) {
        // SAFETY: the lines can be read, and `to` has the aligned bytes of `a_bytes`.
        unsafe { (self.pack)(lines, self.a, to) }
    }

    /// Packs columns of B.
    ///
    /// # Safety
    /// The lines can be read, and `to` has [`b_bytes`](Self::b_bytes), aligned to 64.
    pub(crate) unsafe fn pack_b_block(&self, lines: OperandLines<T>, to: *mut u8) {
        // SAFETY: the lines can be read, and `to` has the aligned bytes of `b_bytes`.
        unsafe { (self.pack)(lines, self.b, to) }
    }

    /// Multiplies packed blocks.
    ///
    /// # Safety
    /// This CPU supports the kernel; `a` and `b` hold what the packing functions made of `rows` and
    /// `cols` lines over `k`; C has its elements, and nobody else touches them.
    pub(crate) unsafe fn multiply_block(&self, product: BlockProduct<T::Acc>) {
        // SAFETY: the CPU supports the kernel, `a` and `b` are packed for it, and C is the caller's
        // alone.
        unsafe { (self.multiply)(&self.block(product)) }
    }

    /// The same where B's rows lie `b_row` elements apart as they are, which a kernel can read that
    /// [`takes_sums`](Self::takes_sums).
    ///
    /// # Safety
    /// As for [`multiply_block`](Self::multiply_block); B has whole panels of columns.
    pub(crate) unsafe fn multiply_rows(&self, product: BlockProduct<T::Acc>, b_row: usize) {
        debug_assert!(self.takes_sums(), "it reads elements of B one by one");
        let b_strides = [self.b.width, b_row];
        // SAFETY: as for `multiply_block`. B's rows have whole panels, which these strides walk.
        unsafe { (self.multiply)(&PackedBlock { b_strides, ..self.block(product) }) }
    }

    /// The same for rows of A that lie `a_row` elements apart and are not packed.
    ///
    /// # Safety
    /// As for [`multiply_block`](Self::multiply_block).
    pub(crate) unsafe fn multiply_lines(&self, product: BlockProduct<T::Acc>, a_row: usize) {
        debug_assert!(self.takes_sums(), "it reads elements of A one by one");
        let a_line = a_row * size_of::<T::Acc>();
        // SAFETY: as for `multiply_block`. A's rows have `k` elements, `a_line` bytes from row to
        // row.
        unsafe { (self.multiply)(&PackedBlock { a_line, ..self.block(product) }) }
    }

    fn block(&self, product: BlockProduct<T::Acc>) -> PackedBlock<T::Acc> {
        let BlockProduct { a, b, c, c_stride, rows, cols, k, accumulate } = product;
        let steps = k.div_ceil(self.a.k_multiple);
        let b_strides = [(steps + self.b.head) * self.b.width, self.b.width];
        let (a_line, next) = (0, std::ptr::null());
        PackedBlock { a, a_line, b, b_strides, next, c, c_stride, rows, cols, steps, accumulate }
    }
}

/// Writes element `k` of line `i` to `to[k * lines + i]`: rows become columns.
///
/// # Safety
/// The lines, whose k lie side by side, can be read, and `to` has room for all of them.
pub(crate) unsafe fn transpose<T: Copy>(from: OperandLines<T>, to: *mut T) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 4 && from.lines > 0 {
        let units = OperandLines {
            from: from.from.cast::<u8>(),
            lines: from.lines,
            line_stride: 4 * from.line_stride,
            k: from.k,
            k_stride: 4,
        };
        // SAFETY: a unit is an element of four bytes, so lines and room are those of the caller.
        done = unsafe { super::transpose::transpose_units(units, from.lines, to.cast()) };
    }
    for k in done..from.k {
        for line in 0..from.lines {
            // SAFETY: `line` and `k` are below the extents, and `from` and `to` have every such
            // element.
            unsafe { *to.add(k * from.lines + line) = *from.from.add(line * from.line_stride + k) };
        }
    }
}
