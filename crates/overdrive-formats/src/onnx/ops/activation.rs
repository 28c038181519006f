//! Activations and the elementary functions that are no primitives. Computed in the accumulation
//! type, rounded once.

use crate::onnx::axes::{axis, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{Compare, Expr, Unary};
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4};

/// `f` of the first operand in the accumulation type.
pub(super) fn wide<'b>(c: &Call<'_, 'b>, f: impl FnOnce(Expr<'b>) -> Expr<'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    if !x.dtype().is_arithmetic_float() {
        return Err(invalid("f64, f32, f16 or bf16", x.ty().to_string()));
    }
    one(f(x.widen()).convert(x.dtype()))
}

pub(super) fn tan(x: Expr<'_>) -> Expr<'_> {
    x.unary(Unary::Sin) / x.unary(Unary::Cos)
}

/// Two terms of one sign: nothing cancels near 0.
pub(super) fn sinh(x: Expr<'_>) -> Expr<'_> {
    (x.unary(Unary::Expm1) - (-x).unary(Unary::Expm1)) * 0.5
}

pub(super) fn cosh(x: Expr<'_>) -> Expr<'_> {
    (x.exp() + (-x).exp()) * 0.5
}

pub(super) fn asinh(x: Expr<'_>) -> Expr<'_> {
    let a = x.unary(Unary::Abs);
    let tail = a * a / ((a * a + 1.0).sqrt() + 1.0);
    (a + tail).unary(Unary::Log1p) * x.unary(Unary::Sign)
}

pub(super) fn acosh(x: Expr<'_>) -> Expr<'_> {
    let t = x - 1.0;
    (t + (t * 2.0 + t * t).sqrt()).unary(Unary::Log1p)
}

pub(super) fn atanh(x: Expr<'_>) -> Expr<'_> {
    (x.unary(Unary::Log1p) - (-x).unary(Unary::Log1p)) * 0.5
}

/// After Moshier, Cephes `atan.c`: reduced to |x| <= 0.66, then a rational function of degree 4
/// over 5 in x².
pub(super) fn atan(x: Expr<'_>) -> Expr<'_> {
    const P: [f64; 5] = [
        -0.875_060_860_003_190_4,
        -16.157_537_187_333_652,
        -75.008_557_923_147_05,
        -122.886_668_449_013_61,
        -64.850_219_049_420_25,
    ];
    const Q: [f64; 6] = [
        1.0,
        24.858_464_901_423_062,
        165.027_009_831_698_85,
        432.881_060_491_290_27,
        485.390_399_635_913_7,
        194.550_657_148_261_4,
    ];
    let a = x.unary(Unary::Abs);
    let one = a.constant(1.0);
    let steep = a.compare(Compare::Gt, a.constant(2.414_213_562_373_095));
    let middle = a.compare(Compare::Gt, a.constant(0.66));
    let reduced = steep.select(-one / a, middle.select((a - 1.0) / (a + 1.0), a));
    let base =
        steep.select(a.constant(FRAC_PI_2), middle.select(a.constant(FRAC_PI_4), a.constant(0.0)));
    let z = reduced * reduced;
    let horner = |c: &[f64]| c[1..].iter().fold(z.constant(c[0]), |sum, &c| sum * z + c);
    let tail = z * horner(&P) / horner(&Q);
    (base + (reduced * tail + reduced)) * x.unary(Unary::Sign)
}

pub(super) fn asin(x: Expr<'_>) -> Expr<'_> {
    atan(x / ((1.0 - x) * (x + 1.0)).sqrt())
}

/// By the half angle: `π/2 - asin x` would cancel near 1.
pub(super) fn acos(x: Expr<'_>) -> Expr<'_> {
    atan(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0
}

pub(super) fn relu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(c.x(0)?.relu())
}

/// `x` where it is positive, else `f(x)`.
fn where_negative<'b>(x: Expr<'b>, f: Expr<'b>) -> Expr<'b> {
    x.compare(Compare::Lt, x.constant(0.0)).select(f, x)
}

pub(super) fn leaky_relu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 0.01);
    wide(c, |x| where_negative(x, x * alpha))
}

pub(super) fn prelu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, mut slope) = (c.x(0)?, c.x(1)?);
    // Before opset 7 one slope per channel was aligned to axis 1.
    if c.opset < 7 && slope.rank() == 1 && x.rank() > 2 && slope.size(0) > 1 {
        let mut shape = vec![slope.size(0)];
        shape.extend(vec![1; x.rank() - 2]);
        slope = slope.reshape(shape);
    }
    one(where_negative(x, x * slope))
}

pub(super) fn elu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 1.0);
    wide(c, |x| where_negative(x, x.unary(Unary::Expm1) * alpha))
}

pub(super) fn selu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (alpha, gamma) = (c.float_or("alpha", 1.673_263_2), c.float_or("gamma", 1.050_701));
    wide(c, |x| where_negative(x, x.unary(Unary::Expm1) * alpha) * gamma)
}

pub(super) fn celu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 1.0);
    wide(c, |x| where_negative(x, (x / alpha).unary(Unary::Expm1) * alpha))
}

pub(super) fn thresholded_relu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 1.0);
    wide(c, |x| x.compare(Compare::Gt, x.constant(alpha)).select(x, x.constant(0.0)))
}

fn ramp<'b>(x: Expr<'b>, slope: f64, offset: f64) -> Expr<'b> {
    let line = x * slope + offset;
    line.max(line.constant(0.0)).min(line.constant(1.0))
}

pub(super) fn hard_sigmoid<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (alpha, beta) = (c.float_or("alpha", 0.2), c.float_or("beta", 0.5));
    wide(c, |x| ramp(x, alpha, beta))
}

pub(super) fn hard_swish<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    wide(c, |x| x * ramp(x, 1.0 / 6.0, 0.5))
}

/// `log(1 + eˣ)` without overflow.
pub(super) fn softplus(x: Expr<'_>) -> Expr<'_> {
    x.max(x.constant(0.0)) + (-x.unary(Unary::Abs)).exp().unary(Unary::Log1p)
}

pub(super) fn softsign(x: Expr<'_>) -> Expr<'_> {
    x / (x.unary(Unary::Abs) + 1.0)
}

pub(super) fn mish(x: Expr<'_>) -> Expr<'_> {
    x * softplus(x).tanh()
}

pub(super) fn swish<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 1.0);
    if alpha == 1.0 && c.x(0)?.dtype().is_arithmetic_float() {
        return one(c.x(0)?.silu());
    }
    wide(c, |x| x * (x * alpha).unary(Unary::Logistic))
}

pub(super) fn gelu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    match c.text_or("approximate", "none").as_str() {
        "none" => one(c.x(0)?.gelu(Approximation::Erf)),
        "tanh" => one(c.x(0)?.gelu(Approximation::Tanh)),
        other => Err(invalid("approximate none or tanh", other)),
    }
}

/// com.microsoft: an optional bias before the function.
pub(super) fn bias_gelu<'b>(c: &Call<'_, 'b>, approximation: Approximation) -> Outcome<'b> {
    let x = c.x(0)?;
    one(c.maybe(1)?.map_or(x, |bias| x + bias).gelu(approximation))
}

/// com.microsoft: `x σ(1.702 x)`, alpha by attribute.
pub(super) fn quick_gelu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let alpha = c.float_or("alpha", 1.702);
    wide(c, |x| x * (x * alpha).unary(Unary::Logistic))
}

pub(super) fn shrink<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (lambda, bias) = (c.float_or("lambd", 0.5), c.float_or("bias", 0.0));
    let x = c.x(0)?;
    let wide = x.convert(if x.dtype().is_float() {
        x.dtype().accumulation()
    } else {
        overdrive_ir::DType::F64
    });
    let zero = wide.constant(0.0);
    let above = wide.compare(Compare::Gt, wide.constant(lambda)).select(wide - bias, zero);
    let shrunk = wide.compare(Compare::Lt, wide.constant(-lambda)).select(wide + bias, above);
    one(shrunk.convert(x.dtype()))
}

/// The axis of softmax: since opset 13 one axis, before that everything from the axis on as one
/// row.
fn rows<'b>(c: &Call<'_, 'b>) -> Result<(Expr<'b>, usize), Fault> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    if c.opset >= 13 {
        return Ok((x, axis(c.int_or("axis", -1), shape.len())?));
    }
    let first = axis(c.int_or("axis", 1), shape.len().max(1))?;
    if first + 1 >= shape.len() {
        return Ok((x, first));
    }
    let flat: [usize; 2] = [shape[..first].iter().product(), shape[first..].iter().product()];
    Ok((x.reshape(flat), 1))
}

pub(super) fn softmax<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, axis) = rows(c)?;
    one(x.softmax(axis).reshape(c.x(0)?.shape()))
}

pub(super) fn log_softmax<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, axis) = rows(c)?;
    one(log_probabilities(x.widen(), axis).convert(x.dtype()).reshape(c.x(0)?.shape()))
}

/// `log softmax` along an axis.
pub(super) fn log_probabilities<'b>(x: Expr<'b>, axis: usize) -> Expr<'b> {
    let shifted = x - x.reduce_keep(overdrive_ir::Reducer::Max, &[axis]);
    shifted - shifted.exp().reduce_keep(overdrive_ir::Reducer::Sum, &[axis]).log()
}

/// 1 at the first largest element of each row.
pub(super) fn hardmax<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, axis) = rows(c)?;
    let first = super::reduce::first_of(x, axis, overdrive_ir::Reducer::Max)?;
    let positions = c.b.iota(overdrive_ir::DType::I64, x.shape(), axis);
    let hit = positions.compare(Compare::Eq, first).convert(x.dtype());
    one(hit.reshape(c.x(0)?.shape()))
}

/// `swish(gate) value`
pub(super) fn swiglu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (alpha, value) = (c.float_or("alpha", 1.0), c.x(1)?.widen());
    wide(c, |gate| gate * (gate * alpha).unary(Unary::Logistic) * value)
}
