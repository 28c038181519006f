//! Values from attributes and sizes: constants, ranges, identity matrices, windows of signals.

use crate::onnx::axes::{positive, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{invalid, unsupported};
use overdrive_ir::{Compare, DType, Shape, Tensor};
use std::f64::consts::TAU;

pub(super) fn constant<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    if let Some(proto) = c.attribute("value").and_then(|a| a.t.as_ref()) {
        return one(c.storage.value(proto, None)?);
    }
    let ints = |list: &[i64]| list.iter().map(|&x| x.into()).collect::<Vec<i128>>();
    let floats = |list: &[f32]| list.iter().map(|&x| x.into()).collect::<Vec<f64>>();
    if let Some(a) = c.attribute("value_int") {
        return one(Tensor::from_ints(DType::I64, Shape::default(), &[a.i().into()]));
    }
    if let Some(a) = c.attribute("value_ints") {
        return one(Tensor::from_ints(DType::I64, [a.ints.len()], &ints(&a.ints)));
    }
    if let Some(a) = c.attribute("value_float") {
        return one(Tensor::scalar(DType::F32, a.f().into()));
    }
    if let Some(a) = c.attribute("value_floats") {
        return one(Tensor::from_f64(DType::F32, [a.floats.len()], &floats(&a.floats)));
    }
    Err(unsupported("a constant of strings or sparse values"))
}

/// How many there are decides the shape, so start, limit and delta must be known.
pub(super) fn range<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (start, limit, delta) = (c.number(0)?, c.number(1)?, c.number(2)?);
    let count = ((limit - start) / delta).ceil();
    if delta == 0.0 || !count.is_finite() || count > (1u64 << 40) as f64 {
        return Err(invalid(
            "a range that ends",
            format!("{start}, {start} + {delta}, ... < {limit}"),
        ));
    }
    let dtype = c.x(0)?.dtype();
    let shape = Shape::from([count.max(0.0) as usize]);
    let spread = |i: usize| {
        Ok::<_, crate::onnx::fault::Fault>(
            c.x(i)?.reshape(Shape::default()).broadcast_in(&shape, &[]),
        )
    };
    let wide = if dtype.is_float() { dtype.accumulation() } else { dtype };
    let steps = c.b.iota(wide, shape.clone(), 0);
    one((steps * spread(2)?.convert(wide) + spread(0)?.convert(wide)).convert(dtype))
}

pub(super) fn eye_like<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    if shape.len() != 2 {
        return Err(invalid("a matrix", x.ty().to_string()));
    }
    let dtype =
        if c.int_or("dtype", 0) != 0 { c.dtype("dtype")? } else { None }.unwrap_or(x.dtype());
    let k = c.int_or("k", 0).clamp(-(1 << 40), 1 << 40);
    let diagonal = c.b.iota(DType::I64, shape.clone(), 0) + super::conv::integer(c, k);
    one(c.b.iota(DType::I64, shape, 1).compare(Compare::Eq, diagonal).convert(dtype))
}

/// `Σ (-1)ᵏ a_k cos(2πkn/N)`, N one less for a symmetric window.
pub(super) fn signal_window<'b>(c: &Call<'_, 'b>, coefficients: &[f64]) -> Outcome<'b> {
    let size = positive(c.integer(0)?, "a window")?;
    let dtype =
        if c.int_or("output_datatype", 1) != 0 { c.dtype("output_datatype")? } else { None };
    let dtype = dtype.unwrap_or(DType::F32);
    let period = if c.flag("periodic", 1) { size } else { (size - 1).max(1) };
    let n = c.b.iota(DType::F64, [size], 0) * (TAU / period as f64);
    let term = |k: usize| {
        (n * k as f64).unary(overdrive_ir::Unary::Cos) * (coefficients[k] * [1.0, -1.0][k % 2])
    };
    let sum = (1..coefficients.len())
        .fold(n.constant(coefficients[0]).broadcast_in(&n.shape(), &[]), |s, k| s + term(k));
    one(sum.convert(dtype))
}
