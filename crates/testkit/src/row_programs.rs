//! Programs over rows that tests and benchmarks share, as the ops of their names expand to.

use crate::programs::{ProgramBuilder, by_row, dense};
use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{Binary, Compare, DType, Reducer, Unary};

/// Softmax from `x` to `y`, over the last of the extents.
pub fn softmax(extents: &[usize], x: Access, y: Access, dtype: DType) -> Program {
    let mut b = ProgramBuilder::new(extents, 1);
    let x = b.load(x, dtype);
    let x = if dtype == DType::F64 { x } else { b.convert(x, DType::F32) };
    let max = b.reduce(Reducer::Max, x);
    let shifted = b.binary(Binary::Sub, x, max);
    let e = b.unary(Unary::Exp, shifted);
    let sum = b.reduce(Reducer::Sum, e);
    let value = b.binary(Binary::Div, e, sum);
    let value = b.convert(value, dtype);
    b.store(y, value);
    b.0
}

/// `log sum exp(x) - x[target]` and the logarithm of each row: slots x, target (i32), loss,
/// logarithm.
pub fn cross_entropy(rows: usize, n: usize, dtype: DType) -> Program {
    let extents = [rows, n];
    let mut b = ProgramBuilder::new(&extents, 1);
    let x = b.load(dense(0, &extents), dtype);
    let x = b.convert(x, DType::F32);
    let target = b.load(by_row(1, &extents), DType::I32);
    let max = b.reduce(Reducer::Max, x);
    let shifted = b.binary(Binary::Sub, x, max);
    let e = b.unary(Unary::Exp, shifted);
    let sum = b.reduce(Reducer::Sum, e);
    let log = b.unary(Unary::Log, sum);
    let log = b.binary(Binary::Add, log, max);
    let picked = picked(&mut b, (target, shifted), Compare::Eq);
    let logit = b.binary(Binary::Add, picked, max);
    let loss = b.binary(Binary::Sub, log, logit);
    b.store(by_row(2, &extents), loss);
    b.store(by_row(3, &extents), log);
    b.0
}

/// The sum over a row of `x` where its index compares to `place`, of 0 elsewhere.
pub fn picked(b: &mut ProgramBuilder, (place, x): (Register, Register), kind: Compare) -> Register {
    let index = b.0.push(Instr::Index(1), DType::I32);
    let here = b.0.push(Instr::Compare(kind, place, index), DType::Bool);
    let zero = b.constant(0.0, DType::F32);
    let term = b.0.push(Instr::Select(here, x, zero), DType::F32);
    b.reduce(Reducer::Sum, term)
}
