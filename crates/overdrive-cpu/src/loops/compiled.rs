//! `CompiledLoop`: a program with all decisions made, ready to run over any addresses.
// Runs frames over the addresses of a slot table, as the caller vouches for them.
#![allow(unsafe_code)]

use overdrive_ir::plan::Program;
use overdrive_ir::{DType, SlotId};

use super::Unsupported;
use super::code::{Code, EmitTarget, MAX_BLOCK, Stores};
use super::expression::{AddressStart, Expression, Node};
use super::frame::{Frame, FrameLayout, MAX_LOOPS, advance, index_at};
use super::isa::Level;
use super::nest::{Lanes, LoopNest};
use super::stages::Stages;
use super::whole_bytes::as_bytes;
use crate::slots::SlotTable;
use crate::stream::fence;
use crate::threads::Pool;

/// Points of a space below which a run stays on the caller's thread: some ten microseconds of work.
const INLINE_POINTS: usize = 16 << 10;
/// Points that a task should have at least, where the space can be cut.
const TASK_POINTS: usize = 32 << 10;

/// Larger for non-temporal stores, to amortise the fence at the end of a task. Also, the next row,
/// which is prefetched, should rarely be another thread's.
const STREAMING_TASK_POINTS: usize = 512 << 10;

/// Tasks that a space should have at least: enough to balance a few threads.
const TILES: usize = 8;
/// Bytes of a result from which on it is written by non-temporal stores. The caches would not hold
/// it until it is read.
const STREAM_BYTES: i64 = 32 << 20;

/// The forms of a program's code over one nest; which one runs depends on where the slots are.
#[derive(Debug)]
pub(super) struct Body {
    pub nest: LoopNest,
    direct: Code,
    pub after_loads: Code,
    /// Instead of both, where results are larger than caches.
    streaming: Option<Code>,
    /// For each store, the bytes that it reaches relative to its slot.
    written: Vec<(SlotId, i64, i64)>,
    /// The same for each load.
    read: Vec<(SlotId, i64, i64)>,
    /// Whether the lanes of a row may be cut between tasks.
    divisible: bool,
    /// Whether some access strides along the lanes.
    strided: bool,
}

impl Body {
    pub(super) fn new(
        expression: &Expression,
        nest: LoopNest,
        level: Level,
    ) -> Result<Body, Unsupported> {
        if nest.outer.len().max(nest.inner.len()) > MAX_LOOPS {
            let reason = format!("more than {MAX_LOOPS} loops that no two addresses walk alike");
            return Err(Unsupported { reason });
        }
        let lanes = if nest.lanes == Lanes::Along { nest.lane } else { MAX_BLOCK };
        let stages = Stages::new(expression, &nest, nest.lines() * lanes);
        let code = |stores| {
            Code::new(EmitTarget { expression, nest: &nest, stages: &stages, level, stores })
        };
        let (direct, after_loads) = (code(Stores::Direct)?, code(Stores::AfterLoads)?);
        let reach = |affine: usize| reach(&nest, affine);
        let written: Vec<_> = expression.stores.iter().filter_map(|s| reach(s.affine)).collect();
        let large = written.iter().any(|(_, from, to)| to - from >= STREAM_BYTES);
        let streaming = large.then(|| code(Stores::Streaming)).transpose()?;
        let loads =
            expression.nodes.iter().zip(&expression.used).filter_map(|(node, &used)| match node {
                Node::Load(affine) if used => reach(*affine),
                _ => None,
            });
        let read = loads.collect();
        let folds = stages.passes.iter().any(|p| !p.folds.is_empty());
        let divisible = nest.lanes == Lanes::Along
            && nest.inner.is_empty()
            && stages.passes.len() == 1
            && !folds
            && stages.row_stores.is_empty();
        let strided = nest
            .walks
            .iter()
            .any(|w| w.lane != 0 && w.element != w.lane && w.source != AddressStart::Index);
        Ok(Body { direct, after_loads, streaming, written, read, divisible, strided, nest })
    }

    /// The code for slots at these addresses, and sums of a contraction at that one, if there are
    /// any.
    pub(super) fn code(&self, slots: &SlotTable, sums: *const u8) -> &Code {
        let sums = sums.addr() as i64;
        let in_place = || {
            self.written
                .iter()
                .map(|w| range(slots, w))
                .any(|(from, to)| (from..to).contains(&sums))
        };
        match &self.streaming {
            Some(code) => code,
            None if self.shares(slots) || in_place() => &self.after_loads,
            None => &self.direct,
        }
    }

    /// Whether some result shares bytes with some operand.
    pub(super) fn shares(&self, slots: &SlotTable) -> bool {
        let meet = |store: &_, load: &_| {
            let (store, load) = (range(slots, store), range(slots, load));
            store.0 < load.1 && load.0 < store.1
        };
        self.written.iter().any(|store| self.read.iter().any(|load| meet(store, load)))
    }

    /// Whether results go by non-temporal stores, so that a task must end with a fence.
    pub(super) fn streams(&self) -> bool {
        self.streaming.is_some()
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        let bytes = |code| FrameLayout::new(code, &self.nest).parts.bytes();
        let codes = [&self.direct, &self.after_loads].into_iter().chain(&self.streaming);
        codes.map(bytes).max().unwrap_or(0)
    }
}

/// The addresses of bytes of a slot.
fn range(slots: &SlotTable, &(slot, from, to): &(SlotId, i64, i64)) -> (i64, i64) {
    let base = slots.get(slot).addr() as i64;
    (base + from, base + to)
}

/// The bytes `[from, to)` of a slot that a walk reaches.
fn reach(nest: &LoopNest, affine: usize) -> Option<(SlotId, i64, i64)> {
    let walk = &nest.walks[affine];
    let AddressStart::Slot(slot) = walk.source else { return None };
    let (mut from, mut to) = (walk.offset, walk.offset + walk.element);
    let outer = walk.outer.iter().zip(&nest.outer);
    let inner = walk.inner.iter().zip(&nest.inner);
    for (stride, &extent) in outer.chain(inner).chain([(&walk.lane, &nest.lane)]) {
        let span = stride * (extent as i64 - 1);
        if span < 0 { from += span } else { to += span }
    }
    Some((slot, from, to))
}

/// A fused loop, compiled for this CPU. It holds no addresses, so that one serves every call.
#[derive(Debug)]
pub struct CompiledLoop {
    /// Nothing where the space has no rows.
    body: Option<Body>,
    points: usize,
}

impl CompiledLoop {
    /// Decides everything that can be decided without addresses: order of loops, passes, registers,
    /// kernels. `slots` gives each slot's element type.
    ///
    /// # Errors
    /// If the program needs what loops cannot do, such as storing types of less than a byte.
    pub fn new(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Result<Self, Unsupported> {
        Self::with_level(program, slots, Level::best())
    }

    /// The same for a given instruction set, which the CPU must have.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Panics
    /// If the CPU lacks the instruction set.
    pub fn with_level(
        program: &Program,
        slots: &dyn Fn(SlotId) -> DType,
        level: Level,
    ) -> Result<Self, Unsupported> {
        assert!(
            Level::supported().any(|l| l == level),
            "{level:?} needs instructions that this CPU lacks"
        );
        let bytes = as_bytes(program, slots);
        let (program, slots): (_, &dyn Fn(SlotId) -> DType) = match &bytes {
            Some(bytes) => (bytes, &|_| DType::U8),
            None => (program, slots),
        };
        let expression = Expression::new(program, slots)?;
        let rows = &program.extents[..program.extents.len() - program.reduced];
        if rows.contains(&0) {
            return Ok(Self { body: None, points: 0 });
        }
        let nest = LoopNest::new(&expression, &program.extents, program.reduced);
        Ok(Self { body: Some(Body::new(&expression, nest, level)?), points: program.points() })
    }

    /// Bytes of scratch memory that each worker needs; reserve them to keep [`run`](Self::run) from
    /// allocating.
    pub fn scratch_bytes(&self) -> usize {
        self.body.as_ref().map_or(0, Body::scratch_bytes)
    }

    /// Executes the loop over the slots' addresses. Allocates nothing where the pool's scratch is
    /// reserved; results do not depend on the number of threads.
    ///
    /// # Safety
    /// `slots` holds, for each slot of the program, the address of all of its bytes, aligned to its
    /// element. During the run nobody else writes what the program reads or touches what it writes.
    pub unsafe fn run(&self, pool: &Pool, slots: &SlotTable) {
        let Some(body) = &self.body else { return };
        let (nest, code, rows) =
            (&body.nest, body.code(slots, std::ptr::null()), body.nest.rows_outside());
        let tile = match nest.lanes {
            // Few columns are cut finer, so that there is a task for each thread.
            Lanes::Across if rows < TILES => {
                code.block.min(nest.lane.div_ceil(TILES).next_multiple_of(64))
            }
            Lanes::Across => code.block,
            Lanes::Along if !body.divisible => nest.lane,
            Lanes::Along if body.strided => code.block,
            Lanes::Along => TASK_POINTS.next_multiple_of(code.block),
        };
        let tile = tile.min(nest.lane).max(1);
        let tiles = nest.lane.div_ceil(tile).max(1);
        let points = if body.streams() { STREAMING_TASK_POINTS } else { TASK_POINTS };
        let rows_per_task = (points / (tile * nest.lines()).max(1)).clamp(1, rows);
        let tasks = rows.div_ceil(rows_per_task) * tiles;
        let task = |task: usize, frame: &mut Frame<'_>| {
            let (first_row, first_lane) = (task / tiles * rows_per_task, task % tiles * tile);
            let lanes = first_lane..(first_lane + tile).min(nest.lane);
            let mut index = index_at(first_row, &nest.outer);
            for _ in first_row..(first_row + rows_per_task).min(rows) {
                // SAFETY: the frame was opened on the caller's slots, and no two tasks share a row
                // and its lanes.
                unsafe { frame.row(&index[..nest.outer.len()], lanes.clone()) };
                advance(&mut index[..nest.outer.len()], &nest.outer);
            }
            if body.streams() {
                fence();
            }
        };
        let (bytes, address) = (self.scratch_bytes(), |slot| slots.get(slot));
        if self.points <= INLINE_POINTS {
            pool.run(1, |_, worker| {
                // SAFETY: `slots` is as `run` asks for, and the scratch is this worker's alone.
                let mut frame =
                    unsafe { Frame::open(code, nest, &address, worker.scratch.bytes(bytes)) };
                (0..tasks).for_each(|i| task(i, &mut frame));
            });
        } else {
            pool.run(tasks, |i, worker| {
                // SAFETY: `slots` is as `run` asks for, and the scratch is this worker's alone.
                task(i, &mut unsafe {
                    Frame::open(code, nest, &address, worker.scratch.bytes(bytes))
                });
            });
        }
    }
}
