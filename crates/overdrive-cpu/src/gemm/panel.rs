//! The forms of an operand: lines, as they lie in memory, and the panels that they are packed into.
#![allow(unsafe_code)] // A prefetch.

/// The form of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Panel {
    /// Rows of A, or columns of B.
    pub width: usize,
    /// Consecutive k that lie together.
    pub group: usize,
    /// k is filled up to a multiple of this, which is itself a multiple of `group`.
    pub k_multiple: usize,
    /// Groups before the first, which hold the initial values of sums.
    pub head: usize,
}

impl Panel {
    /// Elements of a panel over `k`.
    pub(super) fn len(&self, k: usize) -> usize {
        self.width * (k.next_multiple_of(self.k_multiple) + self.head * self.group)
    }
}

/// A block of an operand where it lies: rows of A, or columns of B, over `k` elements each; strides
/// in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperandLines<T> {
    pub(crate) from: *const T,
    pub(crate) lines: usize,
    pub(crate) line_stride: usize,
    pub(crate) k: usize,
    pub(crate) k_stride: usize,
}

impl<T> OperandLines<T> {
    /// Element `k` of line `line`.
    pub(super) fn at(&self, line: usize, k: usize) -> *const T {
        self.from.wrapping_add(line * self.line_stride + k * self.k_stride)
    }

    /// The panels of the block, each with where it begins in the packed block.
    pub(super) fn panels(self, panel: Panel) -> impl Iterator<Item = (Self, usize)> {
        (0..self.lines).step_by(panel.width).map(move |line| {
            let part = Self {
                from: self.at(line, 0),
                lines: (self.lines - line).min(panel.width),
                ..self
            };
            (part, line / panel.width * panel.len(self.k))
        })
    }

    /// Asks for `len` elements from `[line, k]` on, which need not exist.
    #[inline(always)]
    pub(super) fn prefetch(&self, [line, k]: [usize; 2], len: usize) {
        #[cfg(target_arch = "x86_64")]
        for byte in (0..len * size_of::<T>()).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(line, k).cast::<i8>().wrapping_add(byte)) }
        }
        // Elsewhere no intrinsic is stable.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (line, k, len);
    }
}
