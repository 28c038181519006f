//! `Plan`: what a back end will do, decided before anything runs.
//!
//! A plan is ordered steps over slots. Every buffer has its place in one static arena per memory
//! space. Beside it lies one area for the scratch of kernels and libraries, as large as the step
//! that takes most of it. The peak is thus known, and an impossible plan is an error with its size.
//! Back ends share this type, not its contents. Steps of one stream run in order; events order
//! those of different streams.
//!
//! Invariants, which `Plan::verify` checks:
//! - A step reads only slots that a step before it, an input, a state or a constant has written.
//! - Two slots share bytes of an arena only where every use of the one ends before the other is
//!   first used.
//! - All that a step of work touches lies in one memory space.

mod display;
mod host;
mod in_order;
mod lives;
mod on_demand;
mod order;
mod prepared;
mod program;
mod signature;
mod slot;
mod step;
mod timeline;
mod verify;

pub use host::HostCall;
pub use lives::Together;
pub use on_demand::OnDemand;
pub use order::{LiveRange, PartialOrder};
pub use prepared::{Derived, Deriving, Prepared};
pub use program::{Access, Instr, Program, Reduction, Register, Store};
pub use signature::{Addressed, Signature, new_stamp};
pub use slot::{Layout, Slot, SlotId, SlotPlace, Space};
pub use step::{
    Bond, ConvolutionCall, Epilogue, GemmCall, KernelCall, KernelOp, MatrixView, OnlyIf, Step,
    StepKind, View,
};
pub use timeline::{Exchanged, Pace, Timeline, timelines};

use crate::Mode;
pub use crate::window_dimension::WindowDimension;
use std::collections::{BTreeMap, BTreeSet};

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
        /// The considered optimization.
        what: String,
        /// Scope it stood in.
        scope: String,
        /// Why it was refused.
        reason: String,
    },
    /// A value that is computed again and not kept.
    Recomputed {
        /// Name of the op that computes it.
        op: String,
        /// Its scope.
        scope: String,
        /// Who computes it again, and the saving.
        why: Recomputing,
    },
    /// A value that waits outside of main memory until it is needed, to fit a memory limit.
    Offloaded {
        /// The state, or the name of the step that computes the value.
        what: String,
        /// Scope of the value, empty for a state.
        scope: String,
        /// The place where it is kept, and how much memory that saves.
        reason: String,
    },
    /// A step that runs in the memory where its states wait, beside the work of the device.
    RunsThere {
        /// Name of the step.
        step: String,
        /// Its scope.
        scope: String,
        /// How it is faster so.
        reason: String,
    },
    /// A product that is made some rows at a time, with all that follows them, to fit a memory
    /// limit.
    ByRows {
        /// Name of the op: of logits, say.
        op: String,
        /// Its scope.
        scope: String,
        /// Parts of its rows.
        parts: usize,
    },
    /// A cast that the device needed.
    Cast {
        /// Scope of the value.
        scope: String,
        /// From which type to which, and why.
        reason: String,
    },
}

/// Why a value is computed again and not kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Recomputing {
    /// The backward computes it again, so that the plan fits a memory limit.
    ForMemory {
        /// Bytes that need not be kept for it.
        kept_bytes: usize,
    },
    /// The steps that read it compute it again, because that moves fewer bytes.
    ForTraffic {
        /// Bytes that they move less.
        moved_bytes: i64,
    },
}

impl Note {
    /// The backward computes a value again to fit a memory limit.
    pub fn is_recomputed_for_memory(&self) -> bool {
        matches!(self, Self::Recomputed { why: Recomputing::ForMemory { .. }, .. })
    }
}

/// How a memory limit changed a plan; seconds are estimates ([`Plan::seconds`]).
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Limited {
    /// Bytes of main memory that the plan would take without the limit.
    pub free_bytes: u64,
    /// Seconds of a call of that plan.
    pub free_seconds: f64,
    /// Seconds of a call of this one.
    pub seconds: f64,
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
    /// For each state that changes: its name, the slot read, and the slot that holds the new value.
    /// Both are one slot if the update happens in place.
    pub updates: Vec<(String, SlotId, SlotId)>,
    /// Memory space of each state that does not lie in main memory.
    pub offloaded: BTreeMap<String, Space>,
    /// Size of the transient arena of each memory space, in bytes.
    pub arena_bytes: Vec<usize>,
    /// Size of the persistent arena of each memory space, in bytes.
    pub persistent_bytes: Vec<usize>,
    /// The smallest maximum of live bytes in main memory that this order of steps allows: the bound
    /// for its arena.
    pub live_bytes: usize,
    /// If a memory limit changed the plan, what that costs.
    pub limited: Option<Limited>,
    /// Notes on what was expanded, declined, recomputed, moved or cast, and why.
    pub notes: Vec<Note>,
}

impl Plan {
    /// Alignment of every arena offset in bytes: one cache line, and what vector loads want.
    pub const ALIGNMENT: usize = 64;

    /// The slot behind an id.
    pub fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }

    /// Bytes of main memory that the plan places itself: its arena, its scratch and what outlives
    /// calls, without the caller's inputs, outputs and states. Saturates, so that an impossible
    /// plan is still only too large.
    pub fn needed_bytes(&self) -> u64 {
        let sizes = self.arena_bytes.first().into_iter().chain(self.persistent_bytes.first());
        sizes.fold(self.scratch_bytes() as u64, |sum, &bytes| sum.saturating_add(bytes as u64))
    }

    /// The most scratch of a step, in bytes. The stream of work runs one step after another, and
    /// others take none.
    pub fn scratch_bytes(&self) -> usize {
        self.steps.iter().map(|step| step.scratch_bytes).max().unwrap_or(0)
    }

    /// The memory space that a slot lies in.
    pub fn space(&self, id: SlotId) -> Space {
        match &self.slot(id).place {
            SlotPlace::Arena { space, .. } | SlotPlace::Persistent { space, .. } => *space,
            SlotPlace::State(name) => self.offloaded.get(name).copied().unwrap_or_default(),
            SlotPlace::Input(_) | SlotPlace::Output(_) | SlotPlace::Constant(_) => Space::MAIN,
        }
    }

    /// The memory space whose processor runs a step: the one of its results. Copies and collectives
    /// are the device's.
    pub fn runs_in(&self, step: &Step) -> Space {
        let result = step.writes.first().filter(|_| step.kind.is_work());
        result.map_or(Space::MAIN, |slot| self.space(*slot))
    }

    /// Bytes of the states that lie in a memory space.
    pub fn state_bytes(&self, space: Space) -> u64 {
        let mut seen = BTreeSet::new();
        let states = (0..self.slots.len() as u32).map(SlotId).filter(|&id| {
            matches!(&self.slot(id).place, SlotPlace::State(name) if seen.insert(name))
                && self.space(id) == space
        });
        states.map(|id| self.slot(id).bytes() as u64).sum()
    }

    /// The most bytes of a memory space that a call takes: the arenas, states, inputs, outputs and
    /// constants that lie there. Main memory also holds the scratch of steps. Memory that belongs
    /// to no plan is not counted: the scratch of a processor's threads, and all that the driver and
    /// compiled kernels hold.
    pub fn peak_bytes(&self, space: Space) -> u64 {
        let constants =
            self.slots.iter().filter(|slot| matches!(slot.place, SlotPlace::Constant(_)));
        let constants = constants.map(Slot::bytes);
        let passed = self.inputs.iter().chain(&self.outputs).map(|&slot| self.slot(slot).bytes());
        let callers: Vec<usize> = match space {
            Space::MAIN => constants.chain(passed).chain([self.scratch_bytes()]).collect(),
            Space(_) => Vec::new(),
        };
        let at = usize::from(space.0);
        let arenas = [&self.arena_bytes, &self.persistent_bytes].map(|all| all.get(at).copied());
        let sizes = callers.into_iter().chain(arenas.into_iter().flatten());
        sizes.fold(self.state_bytes(space), |sum, bytes| sum.saturating_add(bytes as u64))
    }

    /// Sum over steps of FLOPs and bytes moved.
    pub fn cost(&self) -> crate::Cost {
        self.steps.iter().map(|s| s.cost).sum()
    }

    /// Bytes that this rank sends to others in a call, as [`crate::Prim::sent_bytes`] counts them.
    pub fn sent_bytes(&self) -> u64 {
        let sent = |step: &Step| match &step.kind {
            StepKind::CollectiveStart { prim } => {
                let operands = step.reads.iter().map(|slot| self.slot(*slot).bytes() as u64);
                operands.map(|bytes| prim.sent_bytes(bytes)).sum()
            }
            _ => 0u64,
        };
        self.steps.iter().map(sent).sum()
    }
}
