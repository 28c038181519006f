//! Code: lists of kernel calls for each level of the loops, and where their operands are.
//!
//! A *place* is a row of a table of pointers that the executor keeps. An operation names places, so
//! that executing it is three table look-ups and a call. Registers are blocks of lanes in the
//! worker's scratch memory, handed out by liveness. A contiguous load in the lanes' own type is no
//! operation but a place that moves. The last operation before a contiguous store writes to memory
//! itself.
//!
//! Invariant: a kernel's destination is never one of its sources.

use super::expression::Expression;
use super::isa::{LaneEntry, Level as IsaLevel};
use super::nest::LoopNest;
use super::stages::Stages;
use crate::stream::Near;

/// Index of a place.
pub(super) type PointerId = u32;

/// The target of a row of the pointer table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum PointerTarget {
    /// 8 bytes for one number.
    Cell(u32),
    /// A block of lanes.
    Unit(u32),
    /// The current position of this walk of the nest.
    Walk(u32),
    /// Values kept for the row: the cache's number. It moves through the row's lanes.
    Cache(u32),
    /// A number in the guise of an address.
    Literal(i64),
}

/// A kernel call.
#[derive(Copy, Clone, Debug)]
pub(super) struct Op {
    pub entry: LaneEntry,
    pub dst: PointerId,
    pub src: [PointerId; 3],
    pub immediate: i64,
    /// Cycles a vector that it takes, roughly, if it can prefetch meanwhile.
    pub work: usize,
    pub ahead: Option<PrefetchOp>,
}

impl Op {
    /// An operation without prefetches.
    pub(super) fn new(entry: LaneEntry, dst: PointerId, src: [PointerId; 3], immediate: i64) -> Op {
        Op { entry, dst, src, immediate, work: 0, ahead: None }
    }
}

/// The prefetches of an operation on a block.
#[derive(Copy, Clone, Debug)]
pub(super) struct PrefetchOp {
    /// The walk that a later block or row reads.
    pub walk: PointerId,
    /// Bytes from where it stands to the first that is prefetched.
    pub bytes: i64,
    /// Bytes for each 16 lanes.
    pub step: usize,
    pub near: Near,
}

/// One walk over the lanes of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct RowPass {
    /// Empties the accumulators, on their lanes.
    pub fill: Vec<Op>,
    /// Once a line, on one lane.
    pub line: Vec<Op>,
    /// For each block of lanes.
    pub element: Vec<Op>,
    /// Before a lane of an accumulator has taken more than `reduce::FLUSH` values.
    pub flush: Vec<Op>,
    /// After the last block, on the lanes of accumulators: results from them.
    pub finish: Vec<Op>,
    /// On the numbers that accumulators were gathered into.
    pub gathered: Vec<Op>,
}

/// The operations between two passes, and the pass that follows, if any.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    /// On one lane.
    pub scalars: Vec<Op>,
    /// On the lanes of a tile that lies across rows.
    pub vectors: Vec<Op>,
    pub pass: Option<RowPass>,
}

/// How element results reach memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Stores {
    /// At once: no result shares bytes with an operand.
    Direct,
    /// After all loads of a block.
    AfterLoads,
    /// After all loads of a block, by non-temporal stores.
    Streaming,
}

/// The operations of a loop nest.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub places: Vec<PointerTarget>,
    /// Once a task, on one lane.
    pub setup: Vec<Op>,
    pub stages: Vec<Stage>,
    pub cells: u32,
    pub units: u32,
    pub caches: u32,
    /// Bytes of a lane of the widest register.
    pub lane_bytes: usize,
    /// Lanes of a block.
    pub block: usize,
    /// Lanes of accumulators.
    pub accumulator: usize,
}

/// Bytes of registers that fit in a first-level cache together with the streaming operands.
pub(super) const REGISTER_BYTES: usize = 24 << 10;
/// Limits of a block, in lanes.
pub(super) const MAX_BLOCK: usize = 1024;
pub(super) const MIN_BLOCK: usize = 64;

/// The loops and instruction set that code is emitted for.
#[derive(Copy, Clone)]
pub(super) struct EmitTarget<'a> {
    pub expression: &'a Expression,
    pub nest: &'a LoopNest,
    pub stages: &'a Stages,
    pub level: IsaLevel,
    pub stores: Stores,
}
