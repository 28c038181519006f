//! Elementwise primitives: one result element per operand element, nothing broadcast.

use crate::eval::{Data, scalar};
use crate::{Array, Binary, DType, Mismatch, Overflow, Prim, Tensor, TensorType, Types, Unary};

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
            Data::Float(_) => a.map(|x| scalar::unary(*kind, x)),
            Data::Int(v) => Array::int(
                a.dtype,
                &a.shape,
                v.iter().map(|&x| scalar::unary_int(*kind, a.dtype, x)).collect(),
            ),
        },
        Prim::Binary { kind } => match (&a.data, &args[1].data) {
            (Data::Float(x), Data::Float(y)) => {
                let values = x.iter().zip(y).map(|(&x, &y)| scalar::binary(*kind, x, y)).collect();
                Array::float(a.dtype, &a.shape, values)
            }
            (Data::Int(x), Data::Int(y)) => {
                let values = x
                    .iter()
                    .zip(y)
                    .map(|(&x, &y)| scalar::binary_int(*kind, a.dtype, x, y))
                    .collect();
                Array::int(a.dtype, &a.shape, values)
            }
            _ => unreachable!("operands have equal types"),
        },
        Prim::Compare { kind } => {
            let holds: Vec<i128> = match (&a.data, &args[1].data) {
                (Data::Float(x), Data::Float(y)) => {
                    x.iter().zip(y).map(|(x, y)| scalar::compare(*kind, x, y) as i128).collect()
                }
                (Data::Int(x), Data::Int(y)) => {
                    x.iter().zip(y).map(|(x, y)| scalar::compare(*kind, x, y) as i128).collect()
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
