//! com.microsoft's ops on codes, which ONNX Runtime's quantizer writes in its operator format.
//!
//! A product is `Codes`. Every other op decodes its operands, applies the float op and encodes the
//! result, as the format defines it.

use super::integer::{matmul_codes, offset};
use super::quantize::codes;
use super::{activation, pool};
use crate::onnx::axes::sizes;
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, unsupported};
use crate::onnx::item::{Item, ItemValue};
use overdrive_ir::{Binary, DType, Expr, Shape};

/// The numbers that the codes `x` stand for. Their one scale and zero point are the two operands
/// after `scale - 1`.
fn numbers<'b>(c: &Call<'_, 'b>, x: usize, scale: usize) -> Result<Expr<'b>, Fault> {
    let codes = c.x(x)?;
    let one_of = |parameter: Expr<'b>| parameter.reshape(vec![1usize; codes.rank()]);
    Ok(codes.dequantize(one_of(c.x(scale)?), offset(c, scale + 1)?.map(one_of)))
}

/// The codes of y, their scale and zero point being operands `scale` and the one after it.
fn requantized<'b>(c: &Call<'_, 'b>, y: Expr<'b>, (scale, like): (usize, DType)) -> Outcome<'b> {
    let one_of = |parameter: Expr<'b>| parameter.reshape(vec![1usize; y.rank()]);
    let zero = offset(c, scale + 1)?.map(one_of);
    one(y.quantize(one_of(c.x(scale)?), zero, like))
}

/// QLinearAdd and QLinearMul.
pub(super) fn binary<'b>(c: &Call<'_, 'b>, kind: Binary) -> Outcome<'b> {
    let y = numbers(c, 0, 1)?.binary(kind, numbers(c, 3, 4)?);
    requantized(c, y, (6, c.x(0)?.dtype()))
}

/// An op of one operand.
pub(super) fn unary<'b>(c: &Call<'_, 'b>, f: impl FnOnce(Expr<'b>) -> Expr<'b>) -> Outcome<'b> {
    requantized(c, f(numbers(c, 0, 1)?), (3, c.x(0)?.dtype()))
}

pub(super) fn leaky_relu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let slope = c.float_or("alpha", 0.01);
    unary(c, |x| x.max(x.constant(0.0)) + x.min(x.constant(0.0)) * slope)
}

/// A float op of the default domain, as an opset has it, on what the codes stand for.
fn between<'b>(
    c: &Call<'_, 'b>,
    opset: i64,
    f: impl FnOnce(&Call<'_, 'b>) -> Outcome<'b>,
) -> Outcome<'b> {
    if c.flag("channels_last", 0) {
        return Err(unsupported("channels that come last"));
    }
    let x = Item { value: ItemValue::Computed(numbers(c, 0, 1)?), sources: c.sources() };
    let float = Call::new(c.b, c.node, opset, vec![Some(x)], c.storage);
    let [y] = &f(&float)?[..] else { return Err(unsupported("an op with several results")) };
    c.accept(&float);
    requantized(c, y.expr(c.b), (3, c.x(0)?.dtype()))
}

/// The opset whose pools those of codes follow.
const POOL_OPSET: i64 = 11;

pub(super) fn average_pool<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    between(c, POOL_OPSET, pool::average_pool)
}

pub(super) fn global_average<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    between(c, POOL_OPSET, pool::global_average)
}

pub(super) fn softmax<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    between(c, c.int_or("opset", 13), activation::softmax)
}

/// Scale and zero point of y, then codes, scale and zero point of each part.
pub(super) fn concat<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let parts: Vec<Expr<'b>> =
        (2..c.count()).step_by(3).map(|i| numbers(c, i, i + 1)).collect::<Result<_, _>>()?;
    let first = c.x(2)?;
    let axis = crate::onnx::axes::axis(c.int_or("axis", 0), first.rank())?;
    requantized(c, c.b.concat(&parts, axis), (0, first.dtype()))
}

/// `alpha A B + C`, C being codes of the products' own scale; float where no scale of y is given.
pub(super) fn gemm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let turned = |x: Expr<'b>, name| if c.flag(name, 0) { x.t() } else { x };
    let (a, b) = (turned(c.x(0)?, "transA"), turned(c.x(3)?, "transB"));
    let sums = matmul_codes((a, offset(c, 2)?), (b, offset(c, 5)?))?;
    let sums = c.maybe(6)?.map_or(sums, |bias| sums + bias.convert(DType::I32));
    let number = |i: usize| Ok::<_, Fault>(c.x(i)?.reshape(Shape::default()));
    let of_b = c.x(4)?;
    let of_b = if sizes(of_b)?.iter().product::<usize>() == 1 { number(4)? } else { of_b };
    let factor = of_b * number(1)? * c.float_or("alpha", 1.0);
    let y = sums.convert(DType::F32);
    if !c.has(7) {
        return one(y * factor);
    }
    let zero = if c.has(8) { Some(number(8)?) } else { None };
    one(codes(y * (factor / number(7)?), zero, zero.map_or(a.dtype(), Expr::dtype)))
}

/// The scaled product of codes, and a bias.
pub(super) fn mat_mul_to_float<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let sums = matmul_codes((c.x(0)?, offset(c, 4)?), (c.x(1)?, offset(c, 5)?))?;
    let scale = |i: usize| {
        let x = c.x(i)?;
        Ok::<_, Fault>(if sizes(x)? == [1] { x.reshape(Shape::default()) } else { x })
    };
    let y = sums.convert(c.x(2)?.dtype()) * scale(3)? * scale(2)?;
    one(match c.maybe(6)? {
        Some(bias) => y + bias,
        None => y,
    })
}
