//! Execution: the table of pointers, and the walk over the rows, lines and blocks of a nest.
//!
//! A frame lies in a worker's scratch memory and lives for one task. Invariant: nothing here
//! allocates.
#![allow(unsafe_code)] // Calls kernels on raw pointers; the safety of those is argued at each call.

use std::ops::Range;

use overdrive_ir::SlotId;

use super::code::{Code, Op, PointerTarget, PrefetchOp, RowPass};
use super::expression::AddressStart;
use super::isa::{Ahead, Operands};
use super::nest::{Lanes, LoopNest};
use super::reduce;
use crate::threads::{PlacedParts, ScratchParts};

/// Loops around the lanes that a frame can count.
pub(super) const MAX_LOOPS: usize = 12;

/// The parts of a frame in scratch memory.
#[derive(Copy, Clone, Debug)]
pub(super) struct FrameLayout {
    /// The table, where walks start and are at the first lane of the row, cells, units, caches.
    pub(super) parts: ScratchParts<6>,
    unit_bytes: usize,
    cache_bytes: usize,
}

impl FrameLayout {
    pub(super) fn new(code: &Code, nest: &LoopNest) -> FrameLayout {
        let unit_bytes = code.block * code.lane_bytes;
        let lanes = if nest.lanes == Lanes::Along { nest.lane } else { code.block };
        let cache = nest.lines() * lanes * code.lane_bytes;
        let cache_bytes = if code.caches == 0 { 0 } else { cache.next_multiple_of(64) };
        let parts = ScratchParts::new([
            ("table", code.places.len() * 8),
            ("starts of walks", nest.walks.len() * 8),
            ("rows of walks", nest.walks.len() * 8),
            ("cells", code.cells as usize * 8),
            ("units", code.units as usize * unit_bytes),
            ("caches", code.caches as usize * cache_bytes),
        ]);
        FrameLayout { parts, unit_bytes, cache_bytes }
    }
}

/// One task's state.
pub(super) struct Frame<'a> {
    code: &'a Code,
    nest: &'a LoopNest,
    /// Bytes of a cache.
    cache_bytes: usize,
    placed: PlacedParts<'a, 6>,
}

impl<'a> Frame<'a> {
    /// A frame in `scratch`, with the pointers that do not move in place and the task's own values
    /// computed.
    ///
    /// # Safety
    /// `slots` holds, for each slot of the program behind `code`, the address of all of its bytes,
    /// aligned to its element. While the frame lives nobody else writes what the program reads or
    /// touches what it writes.
    pub(super) unsafe fn open(
        code: &'a Code,
        nest: &'a LoopNest,
        slots: &dyn Fn(SlotId) -> *mut u8,
        scratch: &'a mut [u8],
    ) -> Frame<'a> {
        let FrameLayout { parts, unit_bytes, cache_bytes } = FrameLayout::new(code, nest);
        let placed = parts.place(scratch);
        let [.., cells, units, caches] = placed.starts;
        let mut frame = Frame { code, nest, cache_bytes, placed };
        for (at, place) in code.places.iter().enumerate() {
            let pointer = match *place {
                PointerTarget::Cell(i) => cells.wrapping_add(8 * i as usize),
                PointerTarget::Unit(i) => units.wrapping_add(unit_bytes * i as usize),
                PointerTarget::Cache(i) => caches.wrapping_add(cache_bytes * i as usize),
                PointerTarget::Literal(x) => std::ptr::without_provenance_mut(x as usize),
                PointerTarget::Walk(i) => {
                    let walk = &nest.walks[i as usize];
                    let start = match walk.source {
                        AddressStart::Slot(slot) => slots(slot),
                        AddressStart::Index | AddressStart::Accumulator => std::ptr::null_mut(),
                    };
                    let start = start.wrapping_offset(walk.offset as isize);
                    frame.starts()[i as usize] = start;
                    start
                }
            };
            frame.table()[at] = pointer;
        }
        // SAFETY: operands are cells, literals and elements that do not move.
        unsafe { frame.run(&code.setup, 1) };
        frame
    }

    fn part(&mut self, part: usize, len: usize) -> &mut [*mut u8] {
        // SAFETY: parts lie apart from each other within scratch that this frame holds, start on
        // cache lines, and any bytes are a pointer.
        unsafe { std::slice::from_raw_parts_mut(self.placed.starts[part].cast(), len) }
    }

    /// The address of each place.
    fn table(&mut self) -> &mut [*mut u8] {
        self.part(0, self.code.places.len())
    }

    /// The address of each walk at the origin of the space.
    fn starts(&mut self) -> &mut [*mut u8] {
        self.part(1, self.nest.walks.len())
    }

    /// The address of each walk at the first lane of the row.
    fn rows(&mut self) -> &mut [*mut u8] {
        self.part(2, self.nest.walks.len())
    }

    /// Points the walks over an accumulator to a row of its tile, whose first lane is lane `first`.
    pub(super) fn set_accumulator(&mut self, row: *mut u8, first: usize) {
        for (at, walk) in self.nest.walks.iter().enumerate() {
            if walk.source == AddressStart::Accumulator {
                self.starts()[at] = row.wrapping_offset(-(first as isize * walk.element as isize));
            }
        }
    }

    /// Executes `ops` on `n` lanes.
    ///
    /// # Safety
    /// The pointers in the table are right for these operations and as many lanes.
    #[inline(always)]
    unsafe fn run(&mut self, ops: &[Op], n: usize) {
        let table = self.table().as_ptr();
        for op in ops {
            // SAFETY: a place is an index into the table, whose pointers are right for these
            // operations and `n` lanes.
            unsafe {
                let place = |id: u32| *table.add(id as usize);
                let src = [place(op.src[0]), place(op.src[1]), place(op.src[2])]
                    .map(<*mut u8>::cast_const);
                let ahead =
                    op.ahead.map_or(Ahead::NONE, |PrefetchOp { walk, bytes, step, near }| {
                        let from = place(walk).wrapping_offset(bytes as isize);
                        Ahead { from, step, near }
                    });
                (op.entry)(
                    n,
                    &Operands { dst: place(op.dst), src, immediate: op.immediate, ahead },
                );
            }
        }
    }

    /// Executes one row: lanes `lanes` at position `index` of the outer loops.
    ///
    /// # Safety
    /// As for [`open`](Self::open). No other task writes the elements of this row.
    pub(super) unsafe fn row(&mut self, index: &[usize], lanes: Range<usize>) {
        for at in 0..self.nest.walks.len() {
            let walk = &self.nest.walks[at];
            let outer: i64 = index.iter().zip(&walk.outer).map(|(&i, s)| i as i64 * s).sum();
            let row = self.starts()[at]
                .wrapping_offset((outer + lanes.start as i64 * walk.lane) as isize);
            self.rows()[at] = row;
            self.table()[at] = row;
        }
        let code = self.code;
        for stage in &code.stages {
            // SAFETY: the walks stand at the row's first lane; tiles across rows are no longer than
            // a block.
            unsafe {
                self.run(&stage.scalars, 1);
                self.run(&stage.vectors, lanes.len());
                if let Some(pass) = &stage.pass {
                    self.pass(pass, lanes.len());
                }
            }
        }
    }

    /// One walk over the row.
    ///
    /// # Safety
    /// As for [`row`](Self::row).
    unsafe fn pass(&mut self, pass: &RowPass, lanes: usize) {
        let (code, nest) = (self.code, self.nest);
        // Accumulators of an empty row hold at least their identity.
        let accumulator = lanes.clamp(1, code.accumulator);
        // SAFETY: accumulators are units, and a unit has a block of lanes.
        unsafe { self.run(&pass.fill, accumulator) };
        let caches = nest.walks.len()..nest.walks.len() + code.caches as usize;
        for (i, at) in caches.clone().enumerate() {
            self.table()[at] = self.placed.starts[5].wrapping_add(i * self.cache_bytes);
        }
        let mut taken = 0;
        let mut index = [0; MAX_LOOPS];
        for _ in 0..nest.lines() {
            for at in 0..nest.walks.len() {
                let walk = &nest.walks[at];
                let inner: i64 = index.iter().zip(&walk.inner).map(|(&i, s)| i as i64 * s).sum();
                self.table()[at] = self.rows()[at].wrapping_offset(inner as isize);
            }
            // SAFETY: the walks stand at the line's first lane, and move with the blocks.
            unsafe {
                self.run(&pass.line, 1);
                let mut left = lanes;
                while left > 0 {
                    let n = left.min(code.block);
                    self.run(&pass.element, n);
                    left -= n;
                    for at in 0..nest.walks.len() {
                        let step = nest.walks[at].lane * n as i64;
                        self.table()[at] = self.table()[at].wrapping_offset(step as isize);
                    }
                    for at in caches.clone() {
                        self.table()[at] = self.table()[at].wrapping_add(n * code.lane_bytes);
                    }
                    taken += n.div_ceil(code.accumulator);
                    if taken >= reduce::FLUSH {
                        self.run(&pass.flush, accumulator);
                        taken = 0;
                    }
                }
            }
            advance(&mut index[..nest.inner.len()], &nest.inner);
        }
        for at in 0..nest.walks.len() {
            self.table()[at] = self.rows()[at];
        }
        // SAFETY: accumulators are units, and a unit has a block of lanes. The gathered value is
        // one number.
        unsafe {
            self.run(&pass.finish, accumulator);
            self.run(&pass.gathered, 1);
        }
    }
}

/// The next index in row-major order.
pub(super) fn advance(index: &mut [usize], extents: &[usize]) {
    for (i, &extent) in index.iter_mut().zip(extents).rev() {
        *i += 1;
        if *i < extent {
            return;
        }
        *i = 0;
    }
}

/// The index at a row-major position.
pub(super) fn index_at(mut position: usize, extents: &[usize]) -> [usize; MAX_LOOPS] {
    let mut index = [0; MAX_LOOPS];
    for d in (0..extents.len()).rev() {
        index[d] = position % extents[d];
        position /= extents[d];
    }
    index
}
