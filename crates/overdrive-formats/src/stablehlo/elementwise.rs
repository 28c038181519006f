//! Elementwise primitives. Integer division by zero, and shifts by the width or more, give 0. XLA
//! leaves these results open or differs, so they are written out.

use super::writer::{Term, Writer};
use overdrive_ir::{Binary, Compare, DType, Unary};

pub(super) fn unary(kind: Unary, w: &mut Writer, x: &Term) -> Term {
    let unsigned = matches!(x.dtype(), DType::U8 | DType::U16 | DType::U32 | DType::U64);
    let op = match kind {
        Unary::Neg => "negate",
        Unary::Abs if unsigned => return x.clone(),
        Unary::Abs => "abs",
        Unary::Sign if unsigned => {
            let one = w.full(&x.ty, 1.0);
            return w.map("minimum", &[x, &one]);
        }
        Unary::Sign => "sign",
        Unary::Exp => "exponential",
        Unary::Expm1 => "exponential_minus_one",
        Unary::Log => "log",
        Unary::Log1p => "log_plus_one",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Reciprocal => {
            let one = w.full(&x.ty, 1.0);
            return w.map("divide", &[&one, x]);
        }
        Unary::Sin => "sine",
        Unary::Cos => "cosine",
        Unary::Tanh => "tanh",
        // StableHLO leaves it to this dialect, which whoever compiles StableHLO reads too.
        Unary::Erf => return w.apply_chlo("erf", x),
        Unary::Logistic => "logistic",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Round => "round_nearest_even",
        Unary::Not => "not",
    };
    w.map(op, &[x])
}

pub(super) fn binary(kind: Binary, w: &mut Writer, a: &Term, b: &Term) -> Term {
    let op = match kind {
        Binary::Add => "add",
        Binary::Sub => "subtract",
        Binary::Mul => "multiply",
        Binary::Div => "divide",
        Binary::Rem => "remainder",
        Binary::Pow => "power",
        Binary::Max => "maximum",
        Binary::Min => "minimum",
        Binary::And => "and",
        Binary::Or => "or",
        Binary::Xor => "xor",
        Binary::Shl => "shift_left",
        Binary::Shr if a.dtype().int_range().is_some_and(|(low, _)| low < 0) => {
            "shift_right_arithmetic"
        }
        Binary::Shr => "shift_right_logical",
    };
    let result = w.map(op, &[a, b]);
    let defined = match kind {
        Binary::Div | Binary::Rem if !a.dtype().is_float() => {
            let zero = w.full(&b.ty, 0.0);
            w.compare("NE", b, &zero)
        }
        Binary::Shl | Binary::Shr => {
            let (zero, width) = (w.full(&b.ty, 0.0), w.full(&b.ty, b.dtype().bits() as f64));
            let (from, below) = (w.compare("GE", b, &zero), w.compare("LT", b, &width));
            w.map("and", &[&from, &below])
        }
        _ => return result,
    };
    let zero = w.full(&a.ty, 0.0);
    w.select(&defined, &result, &zero)
}

pub(super) fn compare(kind: Compare, w: &mut Writer, a: &Term, b: &Term) -> Term {
    let direction = match kind {
        Compare::Eq => "EQ",
        Compare::Ne => "NE",
        Compare::Lt => "LT",
        Compare::Le => "LE",
        Compare::Gt => "GT",
        Compare::Ge => "GE",
    };
    // f32 holds every value of the formats without arithmetic.
    let narrow = a.dtype().is_float() && !a.dtype().is_arithmetic_float();
    let wide = if narrow { DType::F32 } else { a.dtype() };
    let (a, b) = (w.cast(a, wide), w.cast(b, wide));
    w.compare(direction, &a, &b)
}
