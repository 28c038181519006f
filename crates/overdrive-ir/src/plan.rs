//! `Plan`: what a back end will do, decided before anything runs.
//!
//! Ordered steps over slots; every buffer, library workspaces included, has its place in one static
//! arena per memory space, so that the peak is known and an impossible plan is an error with its
//! size. Back ends share this type, not its contents. Invariant: a step reads only slots that an
//! earlier step, an input, a state or a constant has written, and two slots whose lives overlap
//! never overlap in the arena.

mod display;
mod host;
mod lives;
mod prepared;
mod program;
mod signature;
mod step;

pub use host::HostCall;
pub use lives::Together;
pub use prepared::{Derived, Deriving, Prepared};
pub use program::{Access, Instr, Program, Reduction, Register, Store};
pub use signature::{Addressed, Signature, new_stamp};
pub use step::{
    ConvolutionCall, Dimension, Epilogue, GemmCall, KernelCall, KernelOp, MatrixView, Step,
    StepKind, View,
};

use crate::{Mode, Tensor, TensorType};

/// Index of a slot in `Plan::slots`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotId(pub u32);

/// Index of a memory space of the device: 0 is its main memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Space(pub u8);

/// How a slot's elements lie in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Dense, row-major, bit-packed.
    #[default]
    RowMajor,
    /// A back end's own packing under its own name (packed GEMM weights, say), of this many bytes.
    Packed {
        /// The packing's name, known to the back end that asked for it.
        name: &'static str,
        /// Size of the packed form in bytes.
        bytes: usize,
    },
    /// Raw workspace without element structure.
    Workspace {
        /// Size in bytes.
        bytes: usize,
    },
}

/// Where a slot's bytes are.
#[derive(Clone, PartialEq, Debug)]
pub enum Place {
    /// The caller's input number `0`.
    Input(usize),
    /// The caller's output number `0`.
    Output(usize),
    /// The state of this name, keeping its address across calls.
    State(String),
    /// A constant uploaded once.
    Constant(Tensor),
    /// Bytes `[offset, offset + slot.bytes)` of the arena of `space`.
    Arena {
        /// Memory space.
        space: Space,
        /// Offset in bytes, aligned to `Plan::ALIGNMENT`.
        offset: usize,
    },
    /// Like `Arena`, but kept from call to call: results of `prepare` steps.
    Persistent {
        /// Memory space.
        space: Space,
        /// Offset in bytes in the persistent arena.
        offset: usize,
    },
}

/// One buffer of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Slot {
    /// Logical type.
    pub ty: TensorType,
    /// Arrangement of its bytes.
    pub layout: Layout,
    /// Where it lives.
    pub place: Place,
}

impl Slot {
    /// Size in bytes, as laid out.
    pub fn bytes(&self) -> usize {
        match self.layout {
            Layout::RowMajor => self.ty.bytes(),
            Layout::Packed { bytes, .. } | Layout::Workspace { bytes } => bytes,
        }
    }
}

/// Why the plan is not simpler or faster than it is: told to the user, tested by snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A composite was expanded into primitives because no kernel claims it.
    Expanded {
        /// Name of the op.
        op: String,
        /// Scope it stood in.
        scope: String,
        /// Why it was not kept whole.
        reason: String,
    },
    /// A fusion that was considered and refused.
    Declined {
        /// What was considered.
        what: String,
        /// Scope it stood in.
        scope: String,
        /// Why it was refused.
        reason: String,
    },
    /// A value that is computed again and not kept: for the backward, to fit a memory limit, or by
    /// the steps that read it, where that moves fewer bytes.
    Recomputed {
        /// Name of the op that computes it.
        op: String,
        /// Scope it stands in.
        scope: String,
        /// What that saves.
        reason: String,
    },
    /// A cast that the device needed.
    Cast {
        /// Scope of the value.
        scope: String,
        /// From which type to which, and why.
        reason: String,
    },
}

/// The whole recipe of one executable.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Name of the graph.
    pub name: String,
    /// Execution mode it was made for.
    pub mode: Mode,
    /// Steps in issue order. `prepare` steps run once, and again when their sources change.
    pub steps: Vec<Step>,
    /// All buffers.
    pub slots: Vec<Slot>,
    /// Slot that holds each input on entry.
    pub inputs: Vec<SlotId>,
    /// Slot that holds each output at the end.
    pub outputs: Vec<SlotId>,
    /// For each state that changes: its name, the slot read and the slot that holds the new value
    /// (the same one where the update happens in place).
    pub updates: Vec<(String, SlotId, SlotId)>,
    /// Size of the transient arena of each memory space, in bytes.
    pub arena_bytes: Vec<usize>,
    /// Size of the persistent arena of each memory space, in bytes.
    pub persistent_bytes: Vec<usize>,
    /// The smallest maximum of live bytes that this order of steps allows: the bound for
    /// `arena_bytes`.
    pub live_bytes: usize,
    /// What was expanded, declined, computed again, cast, and why.
    pub notes: Vec<Note>,
}

impl Plan {
    /// Alignment of every arena offset in bytes: one cache line, and what vector loads want.
    pub const ALIGNMENT: usize = 64;

    /// The slot behind an id.
    pub fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }

    /// Bytes that the plan places itself: its arenas and what outlives calls, without the caller's
    /// inputs, outputs and states. Saturates, so that an impossible plan is still only too large.
    pub fn needed_bytes(&self) -> u64 {
        let sizes = self.arena_bytes.iter().chain(&self.persistent_bytes);
        sizes.fold(0, |sum, &bytes| sum.saturating_add(bytes as u64))
    }

    /// Sum over steps of FLOPs and bytes moved.
    pub fn cost(&self) -> crate::Cost {
        self.steps.iter().map(|s| s.cost).sum()
    }
}
