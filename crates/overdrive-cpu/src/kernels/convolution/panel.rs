//! The copy of staged rows into a panel of the right matrix.
//!
//! The copy is in whole pieces of a cache line, whatever the length of a run. A piece may write
//! past its run; the pieces that follow overwrite that. So no copy looks at a border.
#![allow(unsafe_code)] // Raw pointers into the stage and a panel.

/// Neighbouring pixels of a line in a panel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Bytes from the start of the panel's row.
    pub(super) to: usize,
    /// Bytes from where the row's tap sees the span's first pixel.
    pub(super) from: usize,
    pub(super) bytes: usize,
}

/// Copies are of whole pieces; buffers have room for one more.
pub(super) const PIECE: usize = 64;

/// A panel that is copied run by run.
pub(super) struct Panel<'a> {
    pub(super) runs: &'a [Run],
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
    pub(super) to: *mut u8,
}

impl Panel<'_> {
    /// Copies all rows; `row` finds the next.
    ///
    /// # Safety
    /// All runs can be read, whole pieces of them, and there is room for the rows and a piece.
    pub(super) unsafe fn copy(self, row: &mut impl FnMut() -> *const u8) {
        // SAFETY: runs can be read in whole pieces, and `to` has room for the rows and a piece. The
        // vectors are used only where the CPU has them.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if crate::isa::InstructionSet::Avx512.is_usable() {
                return copy_avx512(self, row);
            }
            copy(self, row);
        }
    }
}

/// Copies a panel whose next row `row` finds.
///
/// # Safety
/// All runs can be read, whole pieces of them, and there is room for the rows and a piece.
#[inline(always)]
unsafe fn copy(panel: Panel<'_>, row: &mut impl FnMut() -> *const u8) {
    let Panel { runs, rows, row_bytes, mut to } = panel;
    /// # Safety
    /// A piece can be read and written.
    #[inline(always)]
    unsafe fn piece(from: *const u8, to: *mut u8) {
        // SAFETY: `PIECE` bytes can be read and written; neither side has to be aligned.
        unsafe {
            to.cast::<[u8; PIECE]>().write_unaligned(from.cast::<[u8; PIECE]>().read_unaligned())
        }
    }
    // SAFETY: each run can be read in whole pieces. A piece may write past its run; later pieces
    // overwrite that, and behind the last row there is room for one.
    unsafe {
        if let [run] = runs
            && run.bytes == 2 * PIECE
        {
            for _ in 0..rows {
                let from = row().wrapping_add(run.from);
                piece(from, to);
                piece(from.add(PIECE), to.add(PIECE));
                to = to.wrapping_add(row_bytes);
            }
            return;
        }
        for _ in 0..rows {
            let from = row();
            for run in runs {
                for at in (0..run.bytes).step_by(PIECE) {
                    piece(from.wrapping_add(run.from + at), to.wrapping_add(run.to + at));
                }
            }
            to = to.wrapping_add(row_bytes);
        }
    }
}

/// Copies in whole vectors.
///
/// # Safety
/// As for [`copy`], on a CPU with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(panel: Panel<'_>, row: &mut impl FnMut() -> *const u8) {
    // SAFETY: `copy` asks for the same runs and the same room.
    unsafe { copy(panel, row) }
}
