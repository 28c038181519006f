//! GELU in epilogues whose results have at most 16 bits: one function where the graph has an error
//! function or a tangent and what stands around it.
//!
//! CUDA's `erff` is right to an ulp of f32 and takes some forty instructions a sum, which nothing
//! hides behind a product of moderate depth. `gelu.cuh` says what takes its place; its error is a
//! fraction of what storing rounds away.

use overdrive_ir::plan::{Instr, Program, Register};
use overdrive_ir::{Binary, DType, Unary};
use std::collections::BTreeMap;

/// The functions.
pub(super) const TEXT: &str = include_str!("kernels/gelu.cuh");

const CUBIC: f64 = 0.044715;
const SLOPE: f64 = 0.797_884_560_802_865_4;

/// The statements that take the place of registers which hold GELUs; none where a result has more
/// than 16 bits.
pub(super) fn found(program: &Program) -> BTreeMap<Register, String> {
    if program.stores.iter().any(|store| program.dtype(store.value).bits() > 16) {
        return BTreeMap::new();
    }
    let is_f16 = program.stores.iter().any(|store| program.dtype(store.value) == DType::F16);
    let digits = if is_f16 { 11 } else { 8 };
    let registers = (0..program.instrs.len() as u32).map(Register);
    registers
        .filter(|&register| program.dtype(register) == DType::F32)
        .filter_map(|register| {
            let (x, function) = gelu(program, register)?;
            Some((register, format!("const f32 t{} = {function}<{digits}>(t{});", register.0, x.0)))
        })
        .collect()
}

/// The x of `x / 2 * (1 + f(..))`, and the function that it is.
fn gelu(p: &Program, at: Register) -> Option<(Register, &'static str)> {
    let (left, right) = operands(p, at, Binary::Mul)?;
    [(left, right), (right, left)].into_iter().find_map(|(half, centred)| {
        let x = with_constant(p, half, Binary::Mul, 0.5)?;
        let odd = with_constant(p, centred, Binary::Add, 1.0)?;
        match *p.instr(odd) {
            Instr::Unary(Unary::Erf, u) => {
                let scaled = with_constant(p, u, Binary::Mul, std::f64::consts::FRAC_1_SQRT_2)?;
                (scaled == x).then_some((x, "gelu_erf"))
            }
            Instr::Unary(Unary::Tanh, u) => {
                let cubic = with_constant(p, u, Binary::Mul, SLOPE)?;
                is_cubic(p, cubic, x).then_some((x, "gelu_tanh"))
            }
            _ => None,
        }
    })
}

/// Whether a register holds `x (1 + 0.044715 x²)`.
fn is_cubic(p: &Program, at: Register, x: Register) -> bool {
    let bracket = || {
        let (a, b) = operands(p, at, Binary::Mul)?;
        let bracket = if a == x { b } else { (b == x).then_some(a)? };
        let scaled = with_constant(p, bracket, Binary::Add, 1.0)?;
        let square = with_constant(p, scaled, Binary::Mul, CUBIC)?;
        Some(operands(p, square, Binary::Mul)? == (x, x))
    };
    bracket() == Some(true)
}

fn operands(p: &Program, at: Register, kind: Binary) -> Option<(Register, Register)> {
    match *p.instr(at) {
        Instr::Binary(found, a, b) if found == kind => Some((a, b)),
        _ => None,
    }
}

/// The operand of a register beside the f32 nearest to a number.
fn with_constant(p: &Program, at: Register, kind: Binary, number: f64) -> Option<Register> {
    let (a, b) = operands(p, at, kind)?;
    let is_number =
        |r: Register| matches!(p.instr(r), Instr::Constant(c) if *c as f32 == number as f32);
    if is_number(b) { Some(a) } else { is_number(a).then_some(b) }
}
