//! Convert as Cast, by the tables of ONNX's specification.
//!
//! Ours keeps infinities where it saturates and the format has them; Cast saturates those too, only
//! to formats of 8 bits, and wraps integers. Values beyond the range are limited first, so that
//! Cast has nothing left to decide. Source: <https://onnx.ai/onnx/operators/onnx__Cast.html>.

use super::writer::{Unsaid, Writer, int};
use crate::onnx::types::theirs;
use overdrive_ir::{DType, Overflow};

pub(super) fn write(
    w: &mut Writer,
    x: &str,
    from: DType,
    (to, overflow): (DType, Overflow),
) -> Result<String, Unsaid> {
    let code = theirs(to).ok_or_else(|| Unsaid(format!("no element type for {to}")))?;
    if to == DType::E8M0 {
        return Err(Unsaid("opset 23 rounds nothing to e8m0".into()));
    }
    let mut attributes = vec![int("to", code as i64)];
    // Readers refuse the attribute where the type has no say in it.
    if to.is_fp8() {
        let keeps_infinities = to == DType::F8E5M2 && from.is_float();
        let saturates = overflow == Overflow::Saturate && !keeps_infinities;
        attributes.push(int("saturate", i64::from(saturates)));
    }
    let x = match (to, overflow) {
        (DType::F4E2M1, _) if from.is_float() => numbers(w, x, from)?,
        (_, Overflow::Saturate) => limited(w, x, from, to)?,
        (_, Overflow::Ieee) => x.to_owned(),
    };
    Ok(w.one("Cast", &[&x], attributes))
}

/// `x` with the largest number in place of NaN. Four-bit formats have no NaN, and readers convert
/// it in different ways.
fn numbers(w: &mut Writer, x: &str, from: DType) -> Result<String, Unsaid> {
    let wide = if from == DType::F64 { DType::F64 } else { DType::F32 };
    let x = if from == wide { x.to_owned() } else { w.cast(x, wide)? };
    let most = w.number(wide, DType::F4E2M1.max_value())?;
    let is_nan = w.one("IsNaN", &[&x], vec![]);
    Ok(w.one("Where", &[&is_nan, &most, &x], vec![]))
}

/// `x` within the finite values of `to`; infinities and NaN stay.
fn limited(w: &mut Writer, x: &str, from: DType, to: DType) -> Result<String, Unsaid> {
    if let Some((low, high)) = from.int_range() {
        return limited_integers(w, x, (from, low, high), to);
    }
    let has_infinity = matches!(to, DType::F16 | DType::BF16 | DType::F32 | DType::F8E5M2);
    let most = to.max_value();
    if !from.is_float() || !has_infinity || from.max_value() <= most {
        return Ok(x.to_owned());
    }
    let (x, wide) = match from {
        DType::F32 | DType::F64 => (x.to_owned(), from),
        _ => (w.cast(x, DType::F32)?, DType::F32),
    };
    let most = w.number(wide, most)?;
    let size = w.one("Abs", &[&x], vec![]);
    let beyond = w.one("Less", &[&most, &size], vec![]);
    let sign = w.one("Sign", &[&x], vec![]);
    let last = w.one("Mul", &[&sign, &most], vec![]);
    let finite = w.one("Where", &[&beyond, &last, &x], vec![]);
    let infinite = w.one("IsInf", &[&x], vec![]);
    Ok(w.one("Where", &[&infinite, &x, &finite], vec![]))
}

fn limited_integers(
    w: &mut Writer,
    x: &str,
    (from, low, high): (DType, i128, i128),
    to: DType,
) -> Result<String, Unsaid> {
    let (least, most) = match to.int_range() {
        // All but 0 is true.
        _ if to == DType::Bool => return Ok(x.to_owned()),
        Some(range) => range,
        // The attribute says it of 8 bits, and only f16 is too small for integers else.
        None if to == DType::F16 => (-65504, 65504),
        None => return Ok(x.to_owned()),
    };
    // Max and Min take no integers of 4 bits.
    let (mut x, from) = match from {
        DType::I4 => (w.cast(x, DType::I8)?, DType::I8),
        _ => (x.to_owned(), from),
    };
    for (op, limit, is_needed) in [("Max", least, low < least), ("Min", most, high > most)] {
        if is_needed {
            let limit = w.integer(from, limit)?;
            x = w.one(op, &[&x, &limit], vec![]);
        }
    }
    Ok(x)
}
