//! The buffers of a plan: their types, how their bytes lie, and where.

use crate::{Tensor, TensorType};

/// Index of a slot in `Plan::slots`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotId(pub u32);

/// Index of a memory space of the device: 0 is its main memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Space(pub u8);

impl Space {
    /// The memory that the device computes on.
    pub const MAIN: Space = Space(0);
}

/// The layout of a slot's elements in memory.
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
}

/// The place of a slot's bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum SlotPlace {
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
    /// Its place.
    pub place: SlotPlace,
}

impl Slot {
    /// Size in bytes, as laid out.
    pub fn bytes(&self) -> usize {
        match self.layout {
            Layout::RowMajor => self.ty.bytes(),
            Layout::Packed { bytes, .. } => bytes,
        }
    }
}
