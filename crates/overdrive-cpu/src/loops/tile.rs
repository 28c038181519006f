//! `CompiledTile`: a program over the lanes of a tile that a task has in its scratch.
// Runs frames over the addresses that the caller gives, as it vouches for them.
#![allow(unsafe_code)]

use overdrive_ir::plan::Program;
use overdrive_ir::{DType, SlotId};

use super::Unsupported;
use super::compiled::Body;
use super::expression::{Expression, Reads};
use super::frame::Frame;
use super::isa::Level;
use super::nest::LoopNest;

/// A program over one dimension, compiled for this CPU. It may store where it loads.
#[derive(Debug)]
pub(crate) struct CompiledTile(Body);

impl CompiledTile {
    /// Compiles a program, some of whose loads read at computed places. `slots` gives each slot's
    /// element type.
    ///
    /// # Errors
    /// As for [`CompiledLoop::new`](super::CompiledLoop::new).
    pub(crate) fn new(
        program: &Program,
        slots: &dyn Fn(SlotId) -> DType,
        reads: &Reads,
    ) -> Result<Self, Unsupported> {
        let expression = Expression::with_reads(program, slots, reads)?;
        let nest = LoopNest::rows(&expression, program);
        Ok(Self(Body::new(&expression, nest, Level::best())?))
    }

    /// Bytes of scratch that [`run`](Self::run) needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }

    /// Executes the program on its first `lanes` points.
    ///
    /// # Safety
    /// - `slots` gives the address of each slot of the program, aligned to its element. The slot
    ///   has all elements that the program reaches.
    /// - Nobody else writes what the program reads or touches what it writes.
    /// - `scratch` starts on a 64-byte boundary.
    pub(crate) unsafe fn run(
        &self,
        slots: &dyn Fn(SlotId) -> *mut u8,
        lanes: usize,
        scratch: &mut [u8],
    ) {
        // SAFETY: `slots` is as `open` asks for; the slots have the elements of the first `lanes`
        // points.
        unsafe {
            let mut frame = Frame::open(&self.0.after_loads, &self.0.nest, slots, scratch);
            frame.row(&[], 0..lanes);
        }
    }
}
