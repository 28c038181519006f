//! Elementwise primitives: one result element per operand element, nothing broadcast.

use crate::eval::Data;
use crate::{
    Array, Binary, Compare, DType, Mismatch, Overflow, Prim, Tensor, TensorType, Types, Unary,
};

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    match prim {
        Prim::Unary { kind } => {
            let [a] = types.exactly()?;
            let takes = match kind {
                Unary::Neg | Unary::Abs | Unary::Sign => {
                    a.dtype.is_arithmetic_float() || a.dtype.is_int()
                }
                Unary::Not => !a.dtype.is_float(),
                _ => a.dtype.is_arithmetic_float(),
            };
            takes.then(|| a.clone()).ok_or_else(|| untaken(a))
        }
        Prim::Binary { kind } => {
            let [a, b] = types.exactly()?;
            equal(a, b)?;
            let takes = match kind {
                Binary::And | Binary::Or | Binary::Xor => !a.dtype.is_float(),
                Binary::Shl | Binary::Shr => a.dtype.is_int(),
                Binary::Pow => a.dtype.is_arithmetic_float(),
                _ => a.dtype.is_arithmetic_float() || a.dtype.is_int(),
            };
            takes.then(|| a.clone()).ok_or_else(|| untaken(a))
        }
        Prim::Compare { .. } => {
            let [a, b] = types.exactly()?;
            equal(a, b)?;
            Ok(a.with_dtype(DType::Bool))
        }
        Prim::Select => {
            let [condition, a, b] = types.exactly()?;
            equal(a, b)?;
            equal(condition, &a.with_dtype(DType::Bool))?;
            Ok(a.clone())
        }
        Prim::Convert { to, .. } => {
            let [a] = types.exactly()?;
            Ok(a.with_dtype(*to))
        }
        Prim::Bitcast { to } => {
            let [a] = types.exactly()?;
            if a.dtype.bits() != to.bits() || a.dtype == DType::Bool || *to == DType::Bool {
                let found = format!("{} to {to}", a.dtype);
                return Err(Mismatch::new("types of the same width, neither of them bool", found));
            }
            Ok(a.with_dtype(*to))
        }
        _ => unreachable!("`{}` is not elementwise", prim.name()),
    }
}

fn untaken(ty: &TensorType) -> Mismatch {
    Mismatch::new("an element type that this op takes", ty.to_string()).remedy("convert it first")
}

fn equal(a: &TensorType, b: &TensorType) -> Result<(), Mismatch> {
    if a == b {
        return Ok(());
    }
    let remedy =
        if a.dtype == b.dtype { "broadcast or reshape one side" } else { "convert one side" };
    Err(Mismatch::new("operands of equal type", format!("{a} and {b}")).remedy(remedy))
}

pub(super) fn eval(prim: &Prim, args: &[Array]) -> Array {
    let a = &args[0];
    match prim {
        Prim::Unary { kind } => match &a.data {
            Data::Float(_) => a.map(|x| unary(*kind, x)),
            Data::Int(v) => Array::int(
                a.dtype,
                &a.shape,
                v.iter().map(|&x| unary_int(*kind, a.dtype, x)).collect(),
            ),
        },
        Prim::Binary { kind } => match (&a.data, &args[1].data) {
            (Data::Float(x), Data::Float(y)) => {
                let values = x.iter().zip(y).map(|(&x, &y)| binary(*kind, x, y)).collect();
                Array::float(a.dtype, &a.shape, values)
            }
            (Data::Int(x), Data::Int(y)) => {
                let values =
                    x.iter().zip(y).map(|(&x, &y)| binary_int(*kind, a.dtype, x, y)).collect();
                Array::int(a.dtype, &a.shape, values)
            }
            _ => unreachable!("operands have equal types"),
        },
        Prim::Compare { kind } => {
            let holds: Vec<i128> = match (&a.data, &args[1].data) {
                (Data::Float(x), Data::Float(y)) => {
                    x.iter().zip(y).map(|(x, y)| compare(*kind, x, y) as i128).collect()
                }
                (Data::Int(x), Data::Int(y)) => {
                    x.iter().zip(y).map(|(x, y)| compare(*kind, x, y) as i128).collect()
                }
                _ => unreachable!("operands have equal types"),
            };
            Array::int(DType::Bool, &a.shape, holds)
        }
        Prim::Select => {
            let pick = |i: usize| &args[if a.get(i) != 0.0 { 1 } else { 2 }];
            let data = match &args[1].data {
                Data::Float(_) => Data::Float((0..a.len()).map(|i| pick(i).floats()[i]).collect()),
                Data::Int(_) => Data::Int((0..a.len()).map(|i| pick(i).ints()[i]).collect()),
            };
            Array { dtype: args[1].dtype, shape: a.shape.clone(), data }
        }
        Prim::Convert { to, overflow } => convert(a, *to, *overflow),
        Prim::Bitcast { to } => {
            let ty = TensorType::new(*to, a.shape.clone());
            let bytes = a.to_tensor().bytes().to_vec();
            Array::from(&Tensor::from_bytes(ty, bytes).expect("a bitcast keeps the width"))
        }
        _ => unreachable!("`{}` is not elementwise", prim.name()),
    }
}

fn convert(a: &Array, to: DType, overflow: Overflow) -> Array {
    match &a.data {
        Data::Int(v) if to.int_range().is_some() => {
            let narrow = |x: i128| match (to, overflow) {
                (DType::Bool, _) => (x != 0) as i128,
                (_, Overflow::Saturate) => {
                    let (lo, hi) = to.int_range().expect("checked above");
                    x.clamp(lo, hi)
                }
                _ => x,
            };
            Array::int(to, &a.shape, v.iter().map(|&x| narrow(x)).collect())
        }
        _ => {
            let values = a.to_f64().into_iter().map(|x| to.round(x, overflow)).collect();
            Array::from_f64(to, &a.shape, values)
        }
    }
}

/// The f64 meaning of a function of one operand.
pub(crate) fn unary(kind: Unary, x: f64) -> f64 {
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

fn unary_int(kind: Unary, dtype: DType, x: i128) -> i128 {
    match kind {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => x.signum(),
        Unary::Not if dtype == DType::Bool => 1 - x,
        Unary::Not => !x,
        _ => unreachable!("{kind:?} takes floats only"),
    }
}

/// The f64 meaning of a function of two operands.
pub(crate) fn binary(kind: Binary, x: f64, y: f64) -> f64 {
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
pub(crate) fn binary_int(kind: Binary, dtype: DType, x: i128, y: i128) -> i128 {
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

fn compare<T: PartialOrd>(kind: Compare, x: &T, y: &T) -> bool {
    match kind {
        Compare::Eq => x == y,
        Compare::Ne => x != y,
        Compare::Lt => x < y,
        Compare::Le => x <= y,
        Compare::Gt => x > y,
        Compare::Ge => x >= y,
    }
}
