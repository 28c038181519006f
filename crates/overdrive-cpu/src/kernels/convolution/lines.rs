//! `ByLines`: a compiled convolution as a chain sees it, lines of one image at a time on one
//! thread.

use std::ops::Range;

use super::finish::Finish;
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A convolution over two dimensions, of one group where it is run by lines.
pub(super) trait ByLines: Runnable {
    /// Bytes of scratch that ranges of at most `lines` lines want.
    fn scratch_bytes(&self, lines: usize) -> usize;

    /// Does what comes before the first lines of a call.
    fn prepare(&self, pool: &Pool, slots: &SlotTable);

    /// Computes some lines of an image, from an even one on and to an even one or the last, which
    /// are a part of it where it is folded over. Scratch begins on a 64-byte boundary.
    fn run_lines(
        &self,
        at: (usize, usize),
        lines: Range<usize>,
        slots: &SlotTable,
        scratch: &mut [u8],
    );

    /// What becomes of sums; whoever runs lines begins parts and concludes.
    fn finish(&self) -> &Finish;
}
