//! The meaning of the elementwise primitives for one element: floats in f64, integers exactly.
//!
//! The one place of these formulas: the evaluator and the tests' bounds on rounding errors use
//! them, and `crates/testkit/tests/all/formulas.rs` holds them against series and equations.

use crate::{Binary, Compare, DType, Unary};

/// The meaning of a function of one operand on floats.
pub fn unary(kind: Unary, x: f64) -> f64 {
    match kind {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Erf => libm::erf(x),
        Unary::Logistic => 1.0 / (1.0 + (-x).exp()),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Not => unreachable!("`not` takes no floats"),
    }
}

/// The exact meaning on integers and bool; the caller wraps into the type's range.
pub fn unary_int(kind: Unary, dtype: DType, x: i128) -> i128 {
    match kind {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => x.signum(),
        Unary::Not if dtype == DType::Bool => 1 - x,
        Unary::Not => !x,
        _ => unreachable!("{kind:?} takes floats only"),
    }
}

/// The meaning of a function of two operands on floats.
pub fn binary(kind: Binary, x: f64, y: f64) -> f64 {
    match kind {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Rem => x % y,
        Binary::Pow => x.powf(y),
        Binary::Max if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Max => x.max(y),
        Binary::Min if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Min => x.min(y),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            unreachable!("{kind:?} takes no floats")
        }
    }
}

/// The exact meaning on integers and bool; the caller wraps into the type's range.
pub fn binary_int(kind: Binary, dtype: DType, x: i128, y: i128) -> i128 {
    let width = dtype.bits() as i128;
    match kind {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x.wrapping_mul(y),
        Binary::Div => x.checked_div(y).unwrap_or(0),
        Binary::Rem => x.checked_rem(y).unwrap_or(0),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::Shl | Binary::Shr if y < 0 || y >= width => 0,
        Binary::Shl => x << y,
        Binary::Shr => x >> y,
        Binary::Pow => unreachable!("`pow` takes floats only"),
    }
}

/// Whether `kind` holds of a pair; NaN is in order with nothing.
pub fn compare<T: PartialOrd>(kind: Compare, x: &T, y: &T) -> bool {
    match kind {
        Compare::Eq => x == y,
        Compare::Ne => x != y,
        Compare::Lt => x < y,
        Compare::Le => x <= y,
        Compare::Gt => x > y,
        Compare::Ge => x >= y,
    }
}
