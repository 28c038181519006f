//! Rows of positions by channels.

use crate::gemm::OperandLines;

/// Rows of positions by channels: q, k or v of one head. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRows<T> {
    pub(super) from: *const T,
    /// From one position to the next.
    pub(super) row: usize,
    /// From one channel to the next.
    pub(super) channel: usize,
}

impl<T> HeadRows<T> {
    /// Rows from one on as lines of channels.
    pub(super) fn lines(self, first: usize, lines: usize, channels: usize) -> OperandLines<T> {
        let (line_stride, k_stride) = (self.row, self.channel);
        OperandLines { from: self.at(first), lines, line_stride, k: channels, k_stride }
    }

    /// The same rows as columns.
    pub(super) fn columns(self, first: usize, rows: usize, channels: usize) -> OperandLines<T> {
        let (line_stride, k_stride) = (self.channel, self.row);
        OperandLines { from: self.at(first), lines: channels, line_stride, k: rows, k_stride }
    }

    fn at(&self, row: usize) -> *const T {
        self.from.wrapping_add(row * self.row)
    }
}
