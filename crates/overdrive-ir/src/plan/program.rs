//! `Program`: the scalar expression inside a fused loop or an epilogue, with its iteration space.
//!
//! A program is an SSA list of scalar instructions, evaluated at every point of a rectangular
//! space. The last `reduced` dimensions are folded by `Reduce`. Elementwise chains, softmax, norms,
//! column sums, GEMM epilogues and attention scores are all of this type. So each back end needs
//! one interpreter or one printer.
//!
//! An instruction is *row-level* when it depends on no reduced dimension, else *element-level*.
//! Row-level are loads with stride 0 along those dimensions, constants, `Reduce` results, and
//! values that are computed from these only. An element-level use of a `Reduce` result means
//! another pass over the row. Invariant: operands precede their uses; a `Reduce` operand is
//! element-level; every store's value is row-level when its strides over reduced dimensions are all
//! zero.

use super::slot::SlotId;
use crate::prim::{Binary, Compare, Reducer, Unary};
use crate::{DType, Overflow};

/// Index of an instruction in `Program::instrs`: its result.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Register(pub u32);

/// An affine map from the iteration space to an element of a slot: `offset + sum(index[d] *
/// strides[d])`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The buffer.
    pub slot: SlotId,
    /// Element offset at the origin.
    pub offset: i64,
    /// Elements to move per step of each dimension; 0 broadcasts.
    pub strides: Vec<i64>,
}

/// A fold over the reduced dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduction {
    /// How two values combine.
    pub reducer: Reducer,
    /// The element-level value that is folded.
    pub value: Register,
}

/// One scalar instruction. Arithmetic is in `dtype` of its result (see `Program::dtypes`).
#[derive(Clone, PartialEq, Debug)]
pub enum Instr {
    /// Reads an element.
    Load(Access),
    /// A number.
    Constant(f64),
    /// The index along dimension `0`, as the result's integer or float type.
    Index(usize),
    /// The accumulator of the contraction that this program is the epilogue of.
    Accumulator,
    /// One operand.
    Unary(Unary, Register),
    /// Two operands.
    Binary(Binary, Register, Register),
    /// Comparison, giving bool.
    Compare(Compare, Register, Register),
    /// `if 0 then 1 else 2`.
    Select(Register, Register, Register),
    /// Value conversion to the result's type.
    Convert(Register, Overflow),
    /// Reinterprets the bits as the result's type of the same width.
    Bitcast(Register),
    /// 32 random bits of Philox 4x32-10 keyed by the seed register, for the site and the row-major
    /// index of the point in the iteration space.
    RandomBits {
        /// u64 seed.
        seed: Register,
        /// Site id of the op.
        site: u64,
    },
    /// Folds an element-level value over all reduced dimensions.
    Reduce(Reduction),
}

/// Writes a register to a slot.
#[derive(Clone, PartialEq, Debug)]
pub struct Store {
    /// The destination; distinct points of the space write distinct elements, except for row-level
    /// values over the reduced dimensions.
    pub access: Access,
    /// The value, already converted to the slot's type.
    pub value: Register,
}

/// A scalar program over a rectangular iteration space.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    /// Extents, outermost first; the last `reduced` of them are folded.
    pub extents: Vec<usize>,
    /// Number of trailing dimensions that are reduced.
    pub reduced: usize,
    /// SSA instructions.
    pub instrs: Vec<Instr>,
    /// Result type of each instruction.
    pub dtypes: Vec<DType>,
    /// Effects, in order.
    pub stores: Vec<Store>,
}

impl Program {
    /// Appends an instruction and returns its register.
    pub fn push(&mut self, instr: Instr, dtype: DType) -> Register {
        self.instrs.push(instr);
        self.dtypes.push(dtype);
        Register(self.instrs.len() as u32 - 1)
    }

    /// Calls `see` with the slot of every access.
    pub(super) fn for_each_slot(&mut self, see: &mut dyn FnMut(&mut SlotId)) {
        for instr in &mut self.instrs {
            if let Instr::Load(access) = instr {
                see(&mut access.slot);
            }
        }
        self.stores.iter_mut().for_each(|store| see(&mut store.access.slot));
    }

    /// The instruction behind a register.
    pub fn instr(&self, register: Register) -> &Instr {
        &self.instrs[register.0 as usize]
    }

    /// The type of a register.
    pub fn dtype(&self, register: Register) -> DType {
        self.dtypes[register.0 as usize]
    }

    /// Number of points of the iteration space.
    pub fn points(&self) -> usize {
        self.extents.iter().product()
    }

    /// For each instruction: does it vary along a reduced dimension?
    pub fn element_level(&self) -> Vec<bool> {
        let first_reduced = self.extents.len() - self.reduced;
        let mut level = Vec::with_capacity(self.instrs.len());
        for instr in &self.instrs {
            let varies = match instr {
                Instr::Load(access) => self.is_spread(access),
                Instr::Index(dim) => *dim >= first_reduced,
                Instr::RandomBits { .. } => self.reduced > 0,
                // An epilogue that folds sees each sum of what it folds over.
                Instr::Accumulator => self.reduced > 0,
                Instr::Constant(_) | Instr::Reduce(_) => false,
                other => other.operands().iter().any(|r| level[r.0 as usize]),
            };
            level.push(varies);
        }
        level
    }

    /// For each instruction: is it a reduction, or does it follow from one?
    pub fn after_reductions(&self) -> Vec<bool> {
        let mut after: Vec<bool> = Vec::with_capacity(self.instrs.len());
        for instr in &self.instrs {
            let follows = instr.operands().iter().any(|r| after[r.0 as usize]);
            after.push(follows || matches!(instr, Instr::Reduce(_)));
        }
        after
    }

    /// Whether an access moves along a reduced dimension.
    pub fn is_spread(&self, access: &Access) -> bool {
        access.strides[self.extents.len() - self.reduced..].iter().any(|&s| s != 0)
    }
}

impl Instr {
    /// Registers that the instruction reads.
    pub fn operands(&self) -> Vec<Register> {
        match self {
            Instr::Load(_) | Instr::Constant(_) | Instr::Index(_) | Instr::Accumulator => vec![],
            Instr::Unary(_, a) | Instr::Convert(a, _) | Instr::Bitcast(a) => vec![*a],
            Instr::RandomBits { seed, .. } => vec![*seed],
            Instr::Binary(_, a, b) | Instr::Compare(_, a, b) => vec![*a, *b],
            Instr::Select(c, a, b) => vec![*c, *a, *b],
            Instr::Reduce(r) => vec![r.value],
        }
    }
}
