//! `ByLines`: a compiled convolution as a chain sees it, a band of lines of one image at a time
//! on one thread.

use std::ops::Range;

use super::finish::Finish;
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Lines of an image of the output, for one thread. They begin at an even one and end at an even
/// one or the last.
pub(super) struct Band<'a> {
    pub(super) image: usize,
    /// The number of the band in its image. The band adds a partial sum of its own to a fold.
    pub(super) part: usize,
    pub(super) lines: Range<usize>,
    pub(super) slots: &'a SlotTable,
    /// Begins on a 64-byte boundary.
    pub(super) scratch: &'a mut [u8],
}

/// A convolution over two dimensions, of one group where it is run by lines.
pub(super) trait ByLines: Runnable {
    /// Bytes of scratch that bands of at most `lines` lines want.
    fn scratch_bytes(&self, lines: usize) -> usize;

    /// Packs weights that were not packed ahead; nothing where they are read as they lie.
    fn pack_weights(&self, _: &Pool, _: &SlotTable) {}

    /// Does the work before the first band of a call.
    fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        self.pack_weights(pool, slots);
        self.finish().prepare(pool, slots);
    }

    /// Computes a band.
    fn run_band(&self, band: Band<'_>);

    /// The epilogue of the sums. Whoever runs bands begins parts and concludes.
    fn finish(&self) -> &Finish;
}
