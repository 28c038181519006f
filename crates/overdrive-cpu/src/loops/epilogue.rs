//! `CompiledEpilogue`: a program over the finished blocks of a product, `[batch..., m, n]`.
// Runs frames over the addresses of a slot table, as the caller vouches for them.
#![allow(unsafe_code)]

use overdrive_ir::plan::Program;
use overdrive_ir::{DType, SlotId};

use super::Unsupported;
use super::compiled::Body;
use super::expression::Expression;
use super::frame::{Frame, index_at};
use super::isa::Level;
use super::nest::LoopNest;
use crate::slots::SlotTable;
use crate::stream::fence;

/// A block of finished sums and its place in the product.
#[derive(Copy, Clone, Debug)]
pub struct AccumulatorTile {
    /// The first sum, of the accumulation type of the program; sums of a row are neighbours. They
    /// may lie where their results go, element for element.
    pub sums: *const u8,
    /// Bytes from one row to the next.
    pub row_bytes: usize,
    /// Row-major position in the batch dimensions.
    pub batch: usize,
    /// Index of the first row in the product.
    pub row: usize,
    /// Index of the first column.
    pub col: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
}

/// The epilogue of a contraction, compiled for this CPU.
#[derive(Debug)]
pub struct CompiledEpilogue {
    body: Body,
}

impl CompiledEpilogue {
    /// Compiles a program over `[batch..., m, n]`, which may fold over n what a block has of it;
    /// see [`CompiledLoop::new`](super::CompiledLoop::new).
    ///
    /// # Errors
    /// As for [`CompiledLoop::new`](super::CompiledLoop::new).
    pub fn new(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Result<Self, Unsupported> {
        Self::with_level(program, slots, Level::best())
    }

    /// The same for a given instruction set, which the CPU must have.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Panics
    /// If the CPU lacks the instruction set, or the program is none of an epilogue.
    pub fn with_level(
        program: &Program,
        slots: &dyn Fn(SlotId) -> DType,
        level: Level,
    ) -> Result<Self, Unsupported> {
        assert!(
            Level::supported().any(|l| l == level),
            "{level:?} needs instructions that this CPU lacks"
        );
        assert!(
            program.extents.len() >= 2 && program.reduced <= 1,
            "an epilogue ranges over [batch..., m, n]"
        );
        let expression = Expression::new(program, slots)?;
        let nest = LoopNest::rows(&expression, program);
        Ok(Self { body: Body::new(&expression, nest, level)? })
    }

    /// Bytes of scratch that [`apply`](Self::apply) needs.
    pub fn scratch_bytes(&self) -> usize {
        self.body.scratch_bytes()
    }

    /// Whether sums may wait where results go. Then no other operand shares bytes with the results,
    /// and they are not so many that non-temporal stores pay.
    pub fn lends_its_place(&self, slots: &SlotTable) -> bool {
        !self.body.streams() && !self.body.shares(slots)
    }

    /// Executes the program on one block.
    ///
    /// # Safety
    /// `slots` is as for [`CompiledLoop::run`](super::CompiledLoop::run), the tile lies within the
    /// product and points to its sums, and `scratch` starts on a 64-byte boundary.
    pub unsafe fn apply(&self, slots: &SlotTable, tile: AccumulatorTile, scratch: &mut [u8]) {
        let nest = &self.body.nest;
        // SAFETY: `slots` is as `open` asks for; accumulators are set before each row, so that none
        // is read now.
        let mut frame = unsafe {
            Frame::open(self.body.code(slots, tile.sums), nest, &|slot| slots.get(slot), scratch)
        };
        let batch = nest.outer.len() - 1;
        let mut index = index_at(tile.batch, &nest.outer[..batch]);
        for row in 0..tile.rows {
            index[batch] = tile.row + row;
            frame
                .set_accumulator(tile.sums.wrapping_add(row * tile.row_bytes).cast_mut(), tile.col);
            // SAFETY: accumulators point to this row of sums, and the tile lies within the product.
            unsafe { frame.row(&index[..=batch], tile.col..tile.col + tile.cols) };
        }
        if self.body.streams() {
            fence();
        }
    }
}
