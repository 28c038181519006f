//! Finds values that reach only results of at most 16 bits, so that a faster function is accurate
//! enough.
//!
//! The fast functions err by less than 2^-17 of their result, a half format rounds by 2^-12 or
//! more. A value is *loose* if each of its uses is harmless. A use is harmless if it is rounded to
//! such a format, or if it keeps relative errors as they are and is loose itself. A difference may
//! amplify errors. So a value is not loose if it is added to one that can be negative.
//!
//! The exponential of `x - max x` of its row is loose in any case where it is only summed over that
//! row. One term of the sum is 1. Each other term errs by less than 2^-22 plus 2^-24 times its
//! exponent, and that exponent has shrunk the term as well.
//!
//! So is one from which the 1 of a row's target is taken, both in the same measure: the gradient of
//! a cross entropy. Its error is below 2^-20 of that 1; the rounded logarithm in its exponent costs
//! as much from some 8 on.

use overdrive_ir::plan::{Instr, Program, Register};
use overdrive_ir::{Binary, DType, Reducer, Unary};

/// For each register, whether it is loose.
pub fn loose(program: &Program) -> Vec<bool> {
    let count = program.instrs.len();
    let (mut loose, mut used) = (vec![true; count], vec![false; count]);
    for store in &program.stores {
        let register = store.value.0 as usize;
        used[register] = true;
        loose[register] = false;
    }
    for at in (0..count).rev() {
        let instr = &program.instrs[at];
        for operand in instr.operands() {
            let keeps = match instr {
                Instr::Convert(..) => is_half(program.dtypes[at]),
                Instr::Unary(
                    Unary::Neg | Unary::Abs | Unary::Reciprocal | Unary::Sqrt | Unary::Rsqrt,
                    _,
                )
                | Instr::Binary(Binary::Mul | Binary::Div | Binary::Max | Binary::Min, ..)
                | Instr::Reduce(overdrive_ir::plan::Reduction {
                    reducer: Reducer::Max | Reducer::Min,
                    ..
                }) => loose[at],
                Instr::Select(condition, ..) => loose[at] && *condition != operand,
                Instr::Reduce(fold) => {
                    loose[at] && fold.reducer == Reducer::Sum && is_positive(program, operand)
                }
                Instr::Binary(Binary::Add, a, b) => {
                    loose[at] && is_positive(program, *a) && is_positive(program, *b)
                }
                Instr::Binary(Binary::Sub, a, b) => {
                    loose[at] && operand == *a && is_part_of_one(program, *a, *b)
                }
                _ => false,
            };
            let operand = operand.0 as usize;
            used[operand] = true;
            loose[operand] &= keeps;
        }
    }
    let sums = |at: usize| only_summed(program, Register(at as u32));
    let shifted =
        |at: usize| shifted_exponential(program, &program.instrs[at]).is_some() && sums(at);
    let single = |at: usize| used[at] && program.dtypes[at] == DType::F32;
    (0..count).map(|at| single(at) && (loose[at] || shifted(at))).collect()
}

/// Whether a register is an exponential times a number, and another that number or 0.
fn is_part_of_one(program: &Program, part: Register, one: Register) -> bool {
    let number = |at: Register| match program.instr(at) {
        Instr::Constant(number) => Some(*number),
        _ => None,
    };
    let Instr::Select(_, whole, none) = *program.instr(one) else { return false };
    let (part, measure) = match *program.instr(part) {
        Instr::Binary(Binary::Mul, a, b) if number(b).is_some() => (a, number(b)),
        _ => (part, Some(1.0)),
    };
    let is_exponential = matches!(program.instr(part), Instr::Unary(Unary::Exp, _));
    is_exponential && number(whole) == measure && number(none) == Some(0.0)
}

/// For `exp(x - max)` with the maximum of a row of x: x and the maximum.
pub(super) fn shifted_exponential(
    program: &Program,
    instr: &Instr,
) -> Option<(Register, Register)> {
    let Instr::Unary(Unary::Exp, argument) = instr else { return None };
    let Instr::Binary(Binary::Sub, x, max) = program.instr(*argument) else { return None };
    let is_max = matches!(program.instr(*max),
        Instr::Reduce(fold) if fold.reducer == Reducer::Max && fold.value == *x);
    is_max.then_some((*x, *max))
}

/// Whether nothing uses a register but sums over a row.
fn only_summed(program: &Program, register: Register) -> bool {
    let uses = |instr: &&Instr| instr.operands().contains(&register);
    let sum = |instr: &Instr| matches!(instr, Instr::Reduce(fold) if fold.reducer == Reducer::Sum);
    program.instrs.iter().filter(uses).all(sum)
        && program.stores.iter().all(|store| store.value != register)
}

fn is_half(dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() <= 16
}

/// Whether a register is known not to be negative.
fn is_positive(program: &Program, register: Register) -> bool {
    match program.instr(register) {
        Instr::Constant(number) => *number >= 0.0,
        Instr::Unary(Unary::Exp | Unary::Logistic | Unary::Abs | Unary::Sqrt, _) => true,
        Instr::Binary(Binary::Mul, a, b) => a == b,
        _ => false,
    }
}
