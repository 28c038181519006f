//! Finds the operands of a block: in panels packed before, in panels packed or made now, or in
//! place. Also chooses the addresses that the micro-kernel prefetches.
#![allow(unsafe_code)] // Raw pointers into operands and scratch.

use super::columns::Columns;
use super::kernel::Element;
use super::macro_kernel::{GemmScratch, MacroKernel};
use super::packed::Rhs;
use super::panel::OperandLines;
use super::schedule::{GemmSize, Schedule};

impl<T: Element> MacroKernel<'_, T> {
    /// Bytes from a row of A to the next where the micro-kernel reads A in place, and 0 where A is
    /// packed. Reading in place works for AMX, which loads a tile line by line. Rows without gaps
    /// between them share a cache as panels do.
    pub(super) fn a_line(&self) -> usize {
        let Schedule { kc, .. } = self.schedule;
        let (GemmSize { m, k, .. }, [.., row, element]) = (self.size, self.a.strides);
        let panel = self.kernel.a;
        let line = row * size_of::<T>();
        let has_tiles =
            panel.group * size_of::<T>() == 64 && self.kernel.packed_bytes == size_of::<T>();
        let whole = m.is_multiple_of(panel.width) && k.is_multiple_of(panel.k_multiple) && k <= kc;
        let aligned = (0..2).all(|axis| (self.a.strides[axis] * size_of::<T>()).is_multiple_of(64))
            && self.a.data.as_ptr().addr().is_multiple_of(64);
        if has_tiles && whole && aligned && element == 1 && row == k && k > 0 { line } else { 0 }
    }

    /// The address to prefetch while the strip of the block at `[k0, col]` that begins at row
    /// `above` is multiplied. It is the strip's share of the next packed block, or null.
    pub(super) fn after(
        &self,
        batch: [usize; 2],
        [k0, col, above]: [usize; 3],
        [depth, cols]: [usize; 2],
        [col0, col_end]: [usize; 2],
    ) -> *const u8 {
        let Rhs::Packed(packed) = self.b else { return std::ptr::null() };
        let (k, kernel) = (self.size.k, self.kernel);
        let next = if col + cols < col_end { [k0, col + cols] } else { [k0 + depth, col0] };
        // A sixteenth of a step while a step of a tile is multiplied, as `amx` asks for it.
        let tiles = above / kernel.a.width * (cols / kernel.b.width);
        let offset = tiles * kernel.block_bytes(kernel.b, kernel.b.width, depth) / 16;
        if next[0] >= k || offset >= kernel.block_bytes(kernel.b, cols, depth) {
            return std::ptr::null();
        }
        packed.panels(batch, next[0], next[1]).wrapping_add(offset)
    }

    /// Whether the micro-kernel reads B in place, in panels that step from row to row. It does
    /// where packing would not pay, because few rows of A share a small B.
    pub(super) fn reads_b_in_place(&self) -> bool {
        /// Measured: 128^3 gained 15 %, 256^3 lost 10 %, because rows 1 KiB apart share few sets of
        /// L1.
        const MOST_BYTES: usize = 128 << 10;
        let Rhs::Strided(b) = self.b else { return false };
        let element = size_of::<T>();
        let as_it_is = self.kernel.b.k_multiple == 1 && self.kernel.packed_bytes == element;
        let whole_panels = self.size.n.is_multiple_of(self.kernel.b.width);
        let small = self.size.m <= 256 && self.size.k * b.strides[2] * element <= MOST_BYTES;
        as_it_is && b.strides[3] == 1 && whole_panels && small
    }

    /// B's panels over `[depth, cols]` from `[k0, col]` on: packed now, or long ago.
    pub(super) fn b_block(
        &self,
        batch: [usize; 2],
        [k0, col]: [usize; 2],
        [depth, cols]: [usize; 2],
        buffers: &GemmScratch<'_, T::Acc>,
    ) -> *const u8 {
        match self.b {
            Rhs::Packed(packed) => packed.panels(batch, k0, col),
            Rhs::Made(columns) => {
                self.make(columns, [k0, col], [depth, cols], buffers);
                buffers.b
            }
            Rhs::Strided(b) => {
                let from = b.matrix_at(batch).wrapping_add(k0 * b.strides[2] + col * b.strides[3]);
                if self.reads_b_in_place() {
                    return from.cast();
                }
                let block = OperandLines {
                    from,
                    lines: cols,
                    line_stride: b.strides[3],
                    k: depth,
                    k_stride: b.strides[2],
                };
                // SAFETY: the view reaches all of the block, and the buffer holds a block of `nc`
                // and `kc`.
                unsafe { (self.kernel.pack)(block, self.kernel.b, buffers.b) };
                buffers.b
            }
        }
    }

    /// Makes and packs columns of B, a panel at a time.
    fn make(
        &self,
        columns: &dyn Columns<T>,
        [k0, col]: [usize; 2],
        [depth, cols]: [usize; 2],
        buffers: &GemmScratch<'_, T::Acc>,
    ) {
        let panel = self.kernel.b;
        let as_it_is = panel.k_multiple == 1 && self.kernel.packed_bytes == size_of::<T>();
        for first in (0..cols).step_by(panel.width) {
            let lines = (cols - first).min(panel.width);
            let at = buffers.b.wrapping_add(self.kernel.block_bytes(panel, first, depth));
            // SAFETY: the buffers hold the columns of a panel and a block of `nc` and `kc`. Any
            // bytes are valid numbers.
            unsafe {
                if as_it_is && lines == panel.width {
                    let to = std::slice::from_raw_parts_mut(at.cast::<T>(), lines * depth);
                    if columns.fill_panel([col + first, lines], k0..k0 + depth, to) {
                        continue;
                    }
                }
                let made = buffers.made.cast::<T>();
                let to = std::slice::from_raw_parts_mut(made, lines * depth);
                for (line, to) in to.chunks_exact_mut(depth.max(1)).enumerate() {
                    columns.fill(col + first + line, k0..k0 + depth, to);
                }
                let block =
                    OperandLines { from: made, lines, line_stride: depth, k: depth, k_stride: 1 };
                (self.kernel.pack)(block, panel, at);
            }
        }
    }

    /// Rows of A from `[row, k0]` on.
    pub(super) fn a_block(
        &self,
        batch: [usize; 2],
        [row, k0]: [usize; 2],
        [rows, depth]: [usize; 2],
    ) -> OperandLines<T> {
        let a = &self.a;
        OperandLines {
            from: a.matrix_at(batch).wrapping_add(row * a.strides[2] + k0 * a.strides[3]),
            lines: rows,
            line_stride: a.strides[2],
            k: depth,
            k_stride: a.strides[3],
        }
    }
}
