//! Gradients of elementwise primitives. They use the result instead of the operand where possible,
//! so that the operand need not be kept.

use crate::gradients::cotangent_type;
use crate::{Binary, Compare, Expr, Gradient, Unary};

pub(super) fn unary<'b>(kind: Unary, g: &Gradient<'b, '_>, dy: Expr<'b>) -> Option<Expr<'b>> {
    let (x, y) = (g.inputs[0], g.outputs[0]);
    Some(match kind {
        Unary::Neg => -dy,
        Unary::Abs => dy * x.unary(Unary::Sign),
        Unary::Exp => dy * y,
        Unary::Expm1 => dy * (y + 1.0),
        Unary::Log => dy / x,
        Unary::Log1p => dy / (x + 1.0),
        Unary::Sqrt => dy * 0.5 / y,
        Unary::Rsqrt => dy * -0.5 * (y * y * y),
        Unary::Reciprocal => -(dy * y * y),
        Unary::Sin => dy * x.unary(Unary::Cos),
        Unary::Cos => -(dy * x.unary(Unary::Sin)),
        Unary::Tanh => dy * (1.0 - y * y),
        Unary::Erf => dy * ((-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI),
        Unary::Logistic => dy * (y * (1.0 - y)),
        Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not => return None,
    })
}

pub(super) fn binary<'b>(
    kind: Binary,
    g: &Gradient<'b, '_>,
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    let (a, b, y) = (g.inputs[0], g.inputs[1], g.outputs[0]);
    let zero = dy.constant(0.0);
    let (da, db) = match kind {
        Binary::Add => (dy, dy),
        Binary::Sub => (dy, -dy),
        Binary::Mul => (dy * b, dy * a),
        Binary::Div => (dy / b, -(dy * y / b)),
        // a = y + b k with an integer k, which rounding frees of the division's error.
        Binary::Rem => (dy, -(dy * ((a - y) / b).unary(Unary::Round))),
        Binary::Pow => {
            let at_zero = a.compare(Compare::Eq, zero);
            // 0^-1 and log 0 are infinite where their factors are 0; second derivatives need the
            // inner guards.
            let constant = at_zero.select(b, a.constant(1.0)).compare(Compare::Eq, zero);
            let exponent = constant.select(zero, b - 1.0);
            let log = at_zero.select(a.constant(1.0), a).log();
            (dy * b * a.binary(Binary::Pow, exponent), dy * y * log)
        }
        Binary::Max => (won(dy, a, Compare::Gt, b), won(dy, b, Compare::Gt, a)),
        Binary::Min => (won(dy, a, Compare::Lt, b), won(dy, b, Compare::Lt, a)),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            return vec![None, None];
        }
    };
    vec![Some(da), Some(db)]
}

/// The winner takes all, equals take half each.
fn won<'b>(dy: Expr<'b>, a: Expr<'b>, wins: Compare, b: Expr<'b>) -> Expr<'b> {
    let tie = a.compare(Compare::Eq, b).select(dy * 0.5, dy.constant(0.0));
    a.compare(wins, b).select(dy, tie)
}

pub(super) fn select<'b>(g: &Gradient<'b, '_>, dy: Expr<'b>) -> Vec<Option<Expr<'b>>> {
    let (condition, zero) = (g.inputs[0], dy.constant(0.0));
    vec![None, Some(condition.select(dy, zero)), Some(condition.select(zero, dy))]
}

/// Straight through: rounding is taken for the identity, saturation included.
pub(super) fn convert<'b>(g: &Gradient<'b, '_>, dy: Expr<'b>) -> Option<Expr<'b>> {
    let from = g.inputs[0].ty();
    from.dtype.is_float().then(|| dy.convert(cotangent_type(&from).dtype))
}
