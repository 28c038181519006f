//! Cast, CastLike and BitCast: how values become those of another type, by the tables of ONNX's
//! Cast.
//!
//! Our own conversion keeps infinities, rounds exponents and has no -0 for NaN; where ONNX differs
//! it is said in ops. Source: <https://onnx.ai/onnx/operators/onnx__Cast.html>.

use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::coded::Coded;
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::ItemValue;
use crate::onnx::types;
use overdrive_ir::{Binary, Compare, DType, Expr, Overflow, Prim};

/// Formats without arithmetic are read as f32, which holds all their values.
pub(super) fn number(x: Expr<'_>) -> Expr<'_> {
    let narrow = x.dtype().is_float() && !x.dtype().is_arithmetic_float();
    if narrow { x.convert(DType::F32) } else { x }
}

/// Rounds or saturates as the attributes say; floats to integers truncate.
fn to<'b>(c: &Call<'_, 'b>, x: Expr<'b>, dtype: DType) -> Result<Expr<'b>, Fault> {
    let saturates = c.flag("saturate", 1);
    let mode = c.text_or("round_mode", "up");
    Ok(match dtype {
        _ if x.dtype() == dtype => x,
        DType::E8M0 => exponent(x, &mode, saturates)?,
        DType::F8E4M3 | DType::F8E5M2 if saturates => saturated(x, dtype),
        DType::F4E2M1 => finite(x, dtype),
        _ => x.convert(dtype),
    })
}

fn convert(x: Expr<'_>, to: DType, overflow: Overflow) -> Expr<'_> {
    x.builder().op1(Prim::Convert { to, overflow }, &[x])
}

/// Casts to the nearest number, and values beyond the largest number to that one. That includes
/// infinity, which our own cast keeps if the format has it.
pub(super) fn saturated(x: Expr<'_>, dtype: DType) -> Expr<'_> {
    let x = number(x);
    let infinite = dtype == DType::F8E5M2 && x.dtype().is_float();
    let most = dtype.max_value();
    let inside = if infinite { x.max(x.constant(-most)).min(x.constant(most)) } else { x };
    convert(inside, dtype, Overflow::Saturate)
}

/// Casts to a format that has neither infinity nor NaN. The reference turns NaN into -0.
fn finite(x: Expr<'_>, dtype: DType) -> Expr<'_> {
    let x = number(x);
    let x = if x.dtype().is_float() {
        x.compare(Compare::Ne, x).select(x.constant(-0.0), x)
    } else {
        x
    };
    convert(x, dtype, Overflow::Saturate)
}

/// The sign of an f32, its infinity, and its smallest number of e8m0, which is subnormal.
const MAGNITUDE: f64 = 0x7FFF_FFFF as f64;
const INFINITE: f64 = 0x7F80_0000 as f64;
const SMALLEST: f64 = 0x0040_0000 as f64;
const MANTISSA_BITS: f64 = 23.0;

/// The power of two that stands for the magnitude of `x`, from the bits of an f32: `up` away from
/// zero, `down` towards it, `nearest` with ties up. Beyond the largest power and below the smallest
/// it is that power where it saturates, else NaN.
fn exponent<'b>(x: Expr<'b>, mode: &str, saturates: bool) -> Result<Expr<'b>, Fault> {
    let b = x.builder();
    let bits = b.op1(Prim::Bitcast { to: DType::U32 }, &[x.convert(DType::F32)]);
    let bits = bits.binary(Binary::And, bits.constant(MAGNITUDE));
    let is_subnormal = bits.compare(Compare::Lt, bits.constant(2.0 * SMALLEST));
    let field = bits.binary(Binary::Shr, bits.constant(MANTISSA_BITS));
    let rest = bits - field.binary(Binary::Shl, bits.constant(MANTISSA_BITS));
    // Among subnormal numbers the mantissa itself is the number, with the smallest power in its
    // middle.
    let above = |of_normal: f64, of_subnormal: f64| {
        let least = is_subnormal.select(rest.constant(of_subnormal), rest.constant(of_normal));
        rest.compare(Compare::Ge, least).convert(DType::U32)
    };
    let (carried, lost) = match mode {
        "up" => (field + above(1.0, SMALLEST + 1.0), bits.compare(Compare::Eq, bits.constant(0.0))),
        "down" => (field, bits.compare(Compare::Lt, bits.constant(SMALLEST))),
        "nearest" => {
            let carried = field + above(SMALLEST, 1.5 * SMALLEST);
            (carried, bits.compare(Compare::Lt, bits.constant(SMALLEST)))
        }
        other => return Err(invalid("round_mode up, down or nearest", other)),
    };
    let [largest, nan] = [254.0, 255.0].map(|code| carried.constant(code));
    let code = if saturates { carried.min(largest) } else { lost.select(nan, carried.min(nan)) };
    let is_nan = bits.compare(Compare::Gt, bits.constant(INFINITE));
    let code = is_nan.select(nan, code).convert(DType::U8);
    Ok(b.op1(Prim::Bitcast { to: DType::E8M0 }, &[code]))
}

pub(super) fn cast<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let dtype = match c.attribute("to") {
        Some(a) if a.i() != 0 => c.dtype("to")?,
        // Opset 1 to 5 wrote the type's name.
        Some(a) => types::DTYPES
            .iter()
            .find(|(_, theirs)| theirs.as_str_name().as_bytes() == a.s())
            .map(|(ours, _)| *ours),
        None => None,
    };
    let dtype = dtype.ok_or_else(|| invalid("a type to cast to", "none"))?;
    if let ItemValue::Known(known) = c.value(0)?
        && known.tensor.ty().dtype == DType::I4
        && dtype.is_arithmetic_float()
    {
        c.ignore(&["saturate", "round_mode"]);
        let shape = known.tensor.ty().sizes();
        return one(ItemValue::Coded(Coded::bare(ItemValue::Known(known), shape, dtype).into()));
    }
    one(to(c, c.x(0)?, dtype)?)
}

pub(super) fn cast_like<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(to(c, c.x(0)?, c.x(1)?.dtype())?)
}

pub(super) fn bitcast<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let dtype = c.dtype("to")?.ok_or_else(|| invalid("a type to cast to", "none"))?;
    let x = c.x(0)?;
    one(match (x.dtype(), dtype) {
        (from, to) if from == to => x,
        (DType::Bool, to) if to.bits() == 8 => {
            c.b.op1(Prim::Bitcast { to }, &[x.convert(DType::U8)])
        }
        (from, DType::Bool) if from.bits() == 8 => {
            c.b.op1(Prim::Bitcast { to: DType::U8 }, &[x]).convert(DType::Bool)
        }
        (from, to) if from.bits() == to.bits() => c.b.op1(Prim::Bitcast { to }, &[x]),
        (from, to) => return Err(unsupported(format!("bits of {from} as {to}"))),
    })
}
