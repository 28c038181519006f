//! Ops of one element per element, with NumPy's broadcasting.

use super::cast::number;
use crate::onnx::axes::{broadcast, common, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::coded::{Coded, Parameter};
use crate::onnx::fault::{Fault, invalid};
use crate::onnx::item::ItemValue;
use overdrive_ir::{Binary, Compare, DType, Expr, Unary};

pub(super) fn unary<'b>(c: &Call<'_, 'b>, kind: Unary) -> Outcome<'b> {
    one(c.x(0)?.unary(kind))
}

/// The two operands; before opset 7 the second could be aligned to an axis of the first.
fn pair<'b>(c: &Call<'_, 'b>) -> Result<[Expr<'b>; 2], Fault> {
    let (x, mut y) = (c.x(0)?, c.x(1)?);
    if c.opset < 7 && c.flag("broadcast", 0) {
        let (rank, mut shape) = (x.rank(), sizes(y)?);
        let first = c.attribute("axis").map_or(rank.saturating_sub(shape.len()) as i64, |a| a.i());
        let trailing = rank.checked_sub(first.max(0) as usize + shape.len());
        let trailing =
            trailing.ok_or_else(|| invalid("an axis of the first operand", first.to_string()))?;
        shape.extend(std::iter::repeat_n(1, trailing));
        y = y.reshape(shape);
    }
    Ok([x, y])
}

pub(super) fn binary<'b>(c: &Call<'_, 'b>, kind: Binary) -> Outcome<'b> {
    if let Some(coded) = of_codes(c, kind)? {
        return one(ItemValue::Coded(coded.into()));
    }
    let [x, y] = pair(c)?;
    one(x.binary(kind, y))
}

/// Codes less a zero point, or times a scale: a layer whose zero points are fractions has no other
/// way to be said.
fn of_codes<'b>(c: &Call<'_, 'b>, kind: Binary) -> Result<Option<Coded<'b>>, Fault> {
    let (codes, other) = match (kind, c.value(0)?, c.value(1)?) {
        (Binary::Sub | Binary::Mul, ItemValue::Coded(codes), _) => (codes, 1),
        (Binary::Mul, _, ItemValue::Coded(codes)) => (codes, 0),
        _ => return Ok(None),
    };
    let parameter = c.value(other)?;
    let dtype = match &parameter {
        ItemValue::Known(known) => known.tensor.ty().dtype,
        ItemValue::Computed(expr) => expr.dtype(),
        ItemValue::Coded(_) | ItemValue::Unsigned4(_) => return Ok(None),
    };
    let own = c.extents(other)?;
    let Some(missing) = codes.shape.len().checked_sub(own.len()).filter(|_| dtype == codes.dtype)
    else {
        return Ok(None);
    };
    let counts = [vec![1; missing], own].concat();
    let parameter =
        if kind == Binary::Sub { Parameter::Zero(parameter) } else { Parameter::Scale(parameter) };
    Ok(codes.with(parameter, counts))
}

pub(super) fn compare<'b>(c: &Call<'_, 'b>, kind: Compare) -> Outcome<'b> {
    let [x, y] = pair(c)?;
    one(x.compare(kind, y))
}

/// Any number of operands, folded from the left.
pub(super) fn variadic<'b>(c: &Call<'_, 'b>, kind: Binary) -> Outcome<'b> {
    let operands = c.rest(0)?;
    let folded = operands.into_iter().reduce(|x, y| x.binary(kind, y));
    one(folded.ok_or_else(|| invalid("an input", "none"))?)
}

pub(super) fn mean<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (operands, count) = (c.rest(0)?, c.count() as f64);
    let sum =
        operands.into_iter().reduce(|x, y| x + y).ok_or_else(|| invalid("an input", "none"))?;
    one(sum / count)
}

pub(super) fn select<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(c.x(0)?.select(c.x(1)?, c.x(2)?))
}

/// The base decides the type; powers of integers are taken in f64, which is exact to 2^53.
pub(super) fn pow<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let [x, y] = pair(c)?;
    let dtype = x.dtype();
    if dtype.is_arithmetic_float() {
        return one(x.binary(Binary::Pow, y.convert(dtype)));
    }
    one(x.convert(DType::F64).binary(Binary::Pow, y.convert(DType::F64)).convert(dtype))
}

/// `fmod` has the sign of the dividend, else that of the divisor.
pub(super) fn modulo<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let [x, y] = pair(c)?;
    let rest = x.binary(Binary::Rem, y);
    if c.flag("fmod", 0) {
        return one(rest);
    }
    let zero = x.constant(0.0);
    let signs_differ =
        rest.compare(Compare::Lt, zero).binary(Binary::Xor, y.compare(Compare::Lt, zero));
    let wrong = rest.compare(Compare::Ne, zero).binary(Binary::And, signs_differ);
    one(wrong.select(rest + y, rest))
}

pub(super) fn shift<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    match c.text_or("direction", "").as_str() {
        "LEFT" => binary(c, Binary::Shl),
        "RIGHT" => {
            let [x, y] = pair(c)?;
            one(x.binary(Binary::Shr, if is_signed(x.dtype()) { within(y) } else { y }))
        }
        other => Err(invalid("direction LEFT or RIGHT", other)),
    }
}

fn is_signed(dtype: DType) -> bool {
    dtype.int_range().is_some_and(|(low, _)| low < 0)
}

/// Counts, where one that is negative or of the width or more shifts everything out but the sign:
/// ours would give 0.
fn within(counts: Expr<'_>) -> Expr<'_> {
    let last = counts.constant(counts.dtype().bits() as f64 - 1.0);
    let negative = counts.compare(Compare::Lt, counts.constant(0.0));
    negative.binary(Binary::Or, counts.compare(Compare::Gt, last)).select(last, counts)
}

/// Bounds are operands since opset 11, and attributes before.
pub(super) fn clip<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let bound = |index: usize, name: &'static str| match c.maybe(index)? {
        Some(bound) => Ok::<_, Fault>(Some(bound)),
        None => Ok(c.attribute(name).map(|a| x.constant(f64::from(a.f())))),
    };
    let raised = bound(1, "min")?.map_or(x, |low| x.max(low));
    one(bound(2, "max")?.map_or(raised, |high| raised.min(high)))
}

pub(super) fn identity<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(c.value(0)?)
}

pub(super) fn is_nan<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = number(c.x(0)?);
    one(x.compare(Compare::Ne, x))
}

pub(super) fn is_inf<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = number(c.x(0)?);
    let is = |infinity: f64| x.compare(Compare::Eq, x.constant(infinity));
    one(match (c.flag("detect_positive", 1), c.flag("detect_negative", 1)) {
        (true, true) => is(f64::INFINITY).binary(Binary::Or, is(f64::NEG_INFINITY)),
        (true, false) => is(f64::INFINITY),
        (false, true) => is(f64::NEG_INFINITY),
        (false, false) => broadcast(c.scalar(DType::Bool, 0.0), &sizes(x)?),
    })
}

pub(super) fn expand<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = crate::onnx::axes::extents(&c.ints(1)?)?;
    one(broadcast(x, &common(&sizes(x)?, &shape)?))
}
