//! The pairs of queries and keys that a region cannot tell apart.

use super::{At, Region};
use overdrive_ir::Binary;
use overdrive_ir::plan::{Instr, Register};

/// For which pairs the value of a register is the same.
#[derive(Clone, Copy)]
enum Grain {
    /// It is the index of the query (0) or of the key (1), divided by so many and rounded down.
    Quotient(usize, usize),
    /// Those of cells of so many queries and keys; 0 has all of them in one.
    Cells([usize; 2]),
}

impl Grain {
    fn cells(self) -> [usize; 2] {
        match self {
            Self::Quotient(dimension, step) => {
                [0, 1].map(|d| if d == dimension { step } else { 0 })
            }
            Self::Cells(cells) => cells,
        }
    }

    /// That of a value of both.
    fn and(self, other: Self) -> Self {
        let (one, other) = (self.cells(), other.cells());
        Self::Cells([0, 1].map(|d| greatest_common_divisor(one[d], other[d])))
    }
}

/// The largest number that divides both. That of 0 and a number is the number.
pub fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Region {
    /// The largest cells of queries and keys, counted from 0, for whose pairs its first output is
    /// the same. 0: for all of them. A block-sparse mask reads its tensor at `q / 128` and
    /// `k / 128`, so that its cells have 128 of both.
    pub fn grain(&self) -> [usize; 2] {
        let Region { program, reads, outputs } = self;
        let mut grains: Vec<Grain> = Vec::with_capacity(program.instrs.len());
        for (instr, register) in program.instrs.iter().zip(0..) {
            let of = |r: &Register| grains[r.0 as usize];
            let dtype = program.dtype(Register(register));
            let is_whole = dtype.is_int() && dtype.bits() >= 32;
            let own = match instr {
                Instr::Index(dimension) if *dimension >= 2 && is_whole => {
                    Grain::Quotient(dimension - 2, 1)
                }
                Instr::Index(dimension) if *dimension >= 2 => Grain::Cells([1, 1]),
                Instr::Accumulator => Grain::Cells([1, 1]),
                Instr::Convert(of_register, _) if is_whole => of(of_register),
                Instr::Binary(Binary::Div, quotient, by) if is_whole => {
                    match (of(quotient), program.instr(*by)) {
                        (Grain::Quotient(dimension, step), Instr::Constant(by)) if *by >= 1.0 => {
                            Grain::Quotient(dimension, step.saturating_mul(*by as usize))
                        }
                        (quotient, _) => quotient.and(of(by)),
                    }
                }
                Instr::Load(_) => reads[&Register(register)]
                    .index
                    .iter()
                    .filter_map(|at| if let At::Computed(r) = at { Some(of(r)) } else { None })
                    .fold(Grain::Cells([0, 0]), Grain::and),
                other => other.operands().iter().map(of).fold(Grain::Cells([0, 0]), Grain::and),
            };
            grains.push(own);
        }
        grains[outputs[0][0].0 as usize].cells()
    }
}
