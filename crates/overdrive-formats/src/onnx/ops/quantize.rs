//! Quantized models: codes, scales and zero points stay separate values, so that a back end sees
//! what is quantized.

use super::cast::saturated;
use super::integer::{ZeroPointAxis, matmul_codes, offset};
use crate::onnx::axes::{axis, extent, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::coded::Coded;
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::{ItemValue, KnownTensor};
use crate::onnx::rearrange::{filled, is_movable};
use overdrive_ir::{Compare, DType, Expr, Reducer, Shape, Tensor, Unary};

/// One number, one per element of an axis, or one per block along it, spread over `shape`.
fn spread<'b>(
    parameter: Expr<'b>,
    shape: &[usize],
    along: i64,
    block: usize,
) -> Result<Expr<'b>, Fault> {
    let own = sizes(parameter)?;
    let whole = Shape::from(shape);
    if own.iter().product::<usize>() == 1 && block == 0 {
        return Ok(parameter.reshape(Shape::default()).broadcast_in(&whole, &[]));
    }
    let along = axis(along, shape.len())?;
    if own.len() == 1 && block == 0 {
        return Ok(parameter.broadcast_in(&whole, &[along]));
    }
    let fits = own.len() == shape.len()
        && block > 0
        && (0..shape.len()).all(|a| {
            if a == along { own[a] == shape[a].div_ceil(block) } else { own[a] == shape[a] }
        });
    if !fits {
        return Err(invalid(
            format!("one scale per tensor, channel or block of {shape:?}"),
            parameter.ty().to_string(),
        ));
    }
    let (mut wide, mut flat) = (own.clone(), own.clone());
    wide.insert(along + 1, block);
    flat[along] *= block;
    let dims: Vec<usize> = (0..=shape.len()).filter(|&d| d != along + 1).collect();
    let repeated = parameter.broadcast_in(&Shape::from(wide), &dims).reshape(flat);
    Ok(repeated.slice_axis(along, 0, shape[along]))
}

fn block(c: &Call<'_, '_>) -> Result<usize, Fault> {
    extent(c.int_or("block_size", 0))
}

/// Rounds `x` (in units of the scale) to codes of a type.
pub(super) fn codes<'b>(x: Expr<'b>, zero: Option<Expr<'b>>, dtype: DType) -> Expr<'b> {
    if dtype.is_float() {
        let shifted = zero.map_or(x, |zero| x + zero.convert(x.dtype()));
        return saturated(shifted, dtype);
    }
    let rounded = x.unary(Unary::Round);
    let shifted = zero.map_or(rounded, |zero| rounded + zero.convert(x.dtype()));
    let (low, high) = dtype.int_range().unwrap_or((0, 255));
    let clamped = shifted.max(shifted.constant(low as f64)).min(shifted.constant(high as f64));
    clamped.convert(dtype)
}

/// The shape in which scales cover a tensor of `shape` block by block, as our ops have them; `None`
/// where the last block is not whole.
fn covering(
    own: &[usize],
    shape: &[usize],
    (along, block): (i64, usize),
) -> Result<Option<Vec<usize>>, Fault> {
    if own.iter().product::<usize>() == 1 && block == 0 {
        return Ok(Some(vec![1; shape.len()]));
    }
    let along = axis(along, shape.len())?;
    let mut counts = if block == 0 { vec![1; shape.len()] } else { shape.to_vec() };
    counts[along] = match block {
        0 => shape[along],
        // One block may be larger than all.
        block => (shape[along] / block).max(1),
    };
    let fits = block == 0 || shape[along].is_multiple_of(block) || shape[along] < block;
    let whole = fits && !shape.contains(&0);
    let given = if block == 0 { own == [counts[along]] } else { own == counts };
    Ok((whole && given).then_some(counts))
}

pub(super) fn quantize<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let (along, block) = (c.int_or("axis", 1), block(c)?);
    let saturates = c.flag("saturate", 1);
    let asked = if c.int_or("output_dtype", 0) != 0 { c.dtype("output_dtype")? } else { None };
    if c.has(2) && matches!(c.value(2)?, ItemValue::Unsigned4(_)) {
        return Err(unsupported("codes of uint4 that are computed"));
    }
    let of_zero = c.maybe(2)?.map(Expr::dtype);
    let dtype = of_zero.or(asked).unwrap_or(DType::U8);
    let precision = if c.int_or("precision", 0) != 0 { c.dtype("precision")? } else { None };
    let inner = precision.unwrap_or(if x.dtype().is_float() { x.dtype() } else { scale.dtype() });
    if !inner.is_arithmetic_float() {
        return Err(unsupported(format!("division in {inner}")));
    }
    let zero = offset(c, 2)?;
    // Ours saturates finite numbers, and keeps infinities where a format has them.
    let is_ours = dtype.is_int() || zero.is_none() && saturates && dtype != DType::F8E5M2;
    if let ([DType::F32, DType::F32, DType::F32], true, Some(counts)) = (
        [x.dtype(), scale.dtype(), inner],
        is_ours,
        covering(&sizes(scale)?, &shape, (along, block))?,
    ) {
        return one(x.quantize(
            scale.reshape(counts.clone()),
            zero.map(|zero| zero.reshape(counts)),
            dtype,
        ));
    }
    // A quotient in a short format is rounded to that format before it is rounded to a code.
    let spread_scale = spread(scale.convert(inner), &shape, along, block)?;
    let quotient = (x.convert(inner).widen() / spread_scale.widen()).convert(inner).widen();
    let zero = zero.map(|zero| spread(zero, &shape, along, block)).transpose()?;
    if dtype.is_float() && !saturates {
        let shifted = zero.map_or(quotient, |zero| quotient + zero.convert(quotient.dtype()));
        return one(shifted.convert(dtype));
    }
    one(codes(quotient, zero, dtype))
}

/// Codes, scales and zero points of a dequantized tensor; `None` where zero points are not of their
/// kind, or blocks are not covered.
fn by_codes<'b>(
    c: &Call<'_, 'b>,
    by: (i64, usize),
    dtype: DType,
) -> Result<Option<Coded<'b>>, Fault> {
    let (given, kept) = (c.extents(1)?, c.extents(0)?);
    let (codes, unsigned) = match c.value(0)? {
        ItemValue::Unsigned4(known) => (ItemValue::Known(known), true),
        codes => (codes, false),
    };
    let whole = match covering(&given, &kept, by)? {
        Some(counts) => Some((codes, kept.clone(), counts)),
        None => filled_up(&codes, &given, by)?,
    };
    let Some((codes, shape, counts)) = whole else { return Ok(None) };
    if c.has(2) && c.extents(2)?.iter().product::<usize>() != counts.iter().product::<usize>() {
        return Err(invalid("a zero point for each scale", format!("{:?}", c.extents(2)?)));
    }
    let zero = match (unsigned, if c.has(2) { Some(c.value(2)?) } else { None }) {
        // The zero point of unsigned codes is 0 where there is none.
        (true, None) => Some(all(&counts, -8)),
        (true, Some(ItemValue::Unsigned4(known))) => Some(ItemValue::Known(known)),
        (false, Some(ItemValue::Unsigned4(_))) | (true, Some(_)) => {
            return Err(invalid("a zero point of the codes' type", "another"));
        }
        (false, zero) => zero,
    };
    let zero = zero.filter(|zero| !is_nothing(zero));
    let (of_codes, of_zero) = (dtype_of(&codes), zero.as_ref().map(dtype_of));
    let exact = of_zero.is_none_or(|zero| zero.is_int() && of_codes.bits() <= 16);
    let coded = Coded { codes, scale: Some(c.value(1)?), zero, shape, counts, kept, dtype };
    Ok((exact && of_codes != DType::Bool).then_some(coded))
}

/// A zero point that is the same everywhere.
fn all<'b>(counts: &[usize], zero: i128) -> ItemValue<'b> {
    let count = counts.iter().product();
    Tensor::from_ints(DType::I4, counts.to_vec(), &vec![zero; count]).into()
}

/// Whether a value is known to be 0 throughout.
fn is_nothing(value: &ItemValue<'_>) -> bool {
    matches!(value, ItemValue::Known(known) if known.tensor.to_f64().iter().all(|&x| x == 0.0))
}

fn dtype_of(value: &ItemValue<'_>) -> DType {
    match value {
        ItemValue::Known(known) | ItemValue::Unsigned4(known) => known.tensor.ty().dtype,
        ItemValue::Computed(expr) => expr.dtype(),
        ItemValue::Coded(coded) => coded.dtype,
    }
}

/// A value, its shape, and the counts of its scales.
type Covered<'b> = (ItemValue<'b>, Vec<usize>, Vec<usize>);

/// A known matrix whose last block along an axis is not whole, filled up.
fn filled_up<'b>(
    codes: &ItemValue<'b>,
    given: &[usize],
    (along, block): (i64, usize),
) -> Result<Option<Covered<'b>>, Fault> {
    let ItemValue::Known(KnownTensor { tensor, parameter }) = codes else { return Ok(None) };
    let Ok([rows, columns]) = <[usize; 2]>::try_from(tensor.ty().sizes()) else { return Ok(None) };
    let along = axis(along, 2)?;
    let (mut full, mut counts) = ([rows, columns], vec![rows, columns]);
    counts[along] = counts[along].div_ceil(block.max(1));
    let several = block > 0 && rows * columns > 0 && counts[along] > 1;
    if !several || given != counts || !is_movable(tensor.ty().dtype) {
        return Ok(None);
    }
    full[along] = counts[along] * block;
    let tensor = filled(tensor, [rows, columns], full);
    Ok(Some((
        ItemValue::Known(KnownTensor { tensor, parameter: parameter.clone() }),
        full.to_vec(),
        counts,
    )))
}

pub(super) fn dequantize<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let of_scale = dtype_of(&c.value(1)?);
    let (along, block) = (c.int_or("axis", 1), block(c)?);
    let asked = if c.int_or("output_dtype", 0) != 0 { c.dtype("output_dtype")? } else { None };
    let dtype = asked.unwrap_or(if of_scale.is_arithmetic_float() { of_scale } else { DType::F32 });
    if of_scale.is_float()
        && let Some(coded) = by_codes(c, (along, block), dtype)?
    {
        return one(ItemValue::Coded(coded.into()));
    }
    let shape = c.extents(0)?;
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let wide =
        if scale.dtype().is_arithmetic_float() { scale.widen() } else { scale.convert(DType::F32) };
    let zero = offset(c, 2)?;
    let centred = match zero.map(|zero| spread(zero, &shape, along, block)).transpose()? {
        None => x.convert(wide.dtype()),
        // 32-bit codes come without a zero point of their own; differences of the others fit i32
        // exactly.
        Some(zero) if x.dtype().is_int() => {
            (x.convert(DType::I32) - zero.convert(DType::I32)).convert(wide.dtype())
        }
        Some(zero) => x.convert(wide.dtype()) - zero.convert(wide.dtype()),
    };
    one((centred * spread(wide, &shape, along, block)?).convert(dtype))
}

/// u8 codes over the range of x, which includes 0; the scale and zero point beside them.
pub(super) fn dynamic<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let [y, scale, zero] = dynamically(x)?;
    Ok([y, scale, zero].map(ItemValue::from).to_vec())
}

fn dynamically(x: Expr<'_>) -> Result<[Expr<'_>; 3], Fault> {
    let all: Vec<usize> = (0..sizes(x)?.len()).collect();
    let nothing = x.constant(0.0);
    let (high, low) =
        (x.reduce(Reducer::Max, &all).max(nothing), x.reduce(Reducer::Min, &all).min(nothing));
    let range = high - low;
    let scale = range.compare(Compare::Eq, nothing).select(x.constant(1.0), range) / 255.0;
    let start = -low / scale;
    let zero = start.max(nothing).min(start.constant(255.0)).unary(Unary::Round);
    let shifted = (x / scale).unary(Unary::Round) + zero;
    let y = shifted.max(nothing).min(shifted.constant(255.0)).convert(DType::U8);
    Ok([y, scale, zero.convert(DType::U8)])
}

/// One number, or one per row (or column) of a matrix.
fn lined_up<'b>(parameter: Expr<'b>, side: ZeroPointAxis) -> Result<Expr<'b>, Fault> {
    let mut shape = sizes(parameter)?;
    match (shape.len(), side) {
        (1, _) if shape[0] == 1 => Ok(parameter.reshape(Shape::default())),
        (1, ZeroPointAxis::Rows) => {
            shape.push(1);
            Ok(parameter.reshape(shape))
        }
        _ => Ok(parameter),
    }
}

pub(super) fn qlinear_matmul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let sums = matmul_codes((c.x(0)?, offset(c, 2)?), (c.x(3)?, offset(c, 5)?))?;
    let scale = |i: usize, side: ZeroPointAxis| Ok::<_, Fault>(lined_up(c.x(i)?, side)?.widen());
    let factor = scale(1, ZeroPointAxis::Rows)? * scale(4, ZeroPointAxis::Columns)?
        / scale(6, ZeroPointAxis::Rows)?;
    let zero = c.x(7)?;
    let zero_rows = lined_up(zero, ZeroPointAxis::Rows)?;
    one(codes(sums.convert(factor.dtype()) * factor, Some(zero_rows), zero.dtype()))
}

pub(super) fn qlinear_conv<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let sums =
        super::conv::convolve_codes(c, [(c.x(0)?, offset(c, 2)?), (c.x(3)?, offset(c, 5)?)])?;
    let per_output = |p: Expr<'b>| {
        Ok::<_, Fault>(match sizes(p)?.iter().product::<usize>() {
            1 => p.reshape(Shape::default()),
            _ => p.broadcast_in(&sums.shape(), &[1]),
        })
    };
    let sums = c
        .maybe(8)?
        .map_or(sums, |bias| sums + bias.convert(DType::I32).broadcast_in(&sums.shape(), &[1]));
    let number = |i: usize| Ok::<_, Fault>(c.x(i)?.reshape(Shape::default()));
    let factor = per_output(c.x(4)?)? * number(1)? / number(6)?;
    let zero = number(7)?;
    one(codes(sums.convert(DType::F32) * factor, Some(zero), zero.dtype()))
}

/// com.microsoft: x quantized as it comes, times quantized weights.
pub(super) fn dynamic_mat_mul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, w, scale) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let [codes, x_scale, x_zero] = dynamically(x)?;
    let y = matmul_codes((codes, Some(x_zero)), (w, offset(c, 3)?))?.convert(scale.dtype());
    let y = y * lined_up(scale, ZeroPointAxis::Columns)? * x_scale;
    one(match c.maybe(4)? {
        Some(bias) => y + bias,
        None => y,
    })
}
