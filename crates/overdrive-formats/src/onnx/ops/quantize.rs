//! Quantized models: codes, scales and zero points stay separate values, so that a back end sees what is quantized.

use super::integer::{Side, matmul_codes, offset};
use super::product::matmul;
use crate::onnx::axes::{axis, extent, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::{Coded, Value};
use overdrive_ir::{Binary, Compare, DType, Expr, Overflow, Prim, Reducer, Shape, Tensor, Unary};

/// One number, one per element of an axis, or one per block along it, spread over `shape`.
fn spread<'b>(parameter: Expr<'b>, shape: &[usize], along: i64, block: usize) -> Result<Expr<'b>, Fault> {
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
        && (0..shape.len())
            .all(|a| if a == along { own[a] == shape[a].div_ceil(block) } else { own[a] == shape[a] });
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
        return x.builder().op1(Prim::Convert { to: dtype, overflow: Overflow::Saturate }, &[shifted]);
    }
    let rounded = x.unary(Unary::Round);
    let shifted = zero.map_or(rounded, |zero| rounded + zero.convert(x.dtype()));
    let (low, high) = dtype.int_range().unwrap_or((0, 255));
    let clamped = shifted.max(shifted.constant(low as f64)).min(shifted.constant(high as f64));
    clamped.convert(dtype)
}

/// The shape in which scales cover a tensor of `shape` block by block, as our ops have them; `None` where the last block is
/// not whole.
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
    counts[along] = shape[along].checked_div(block).unwrap_or(shape[along]);
    let whole = (block == 0 || shape[along].is_multiple_of(block)) && !shape.contains(&0);
    let given = if block == 0 { own == [counts[along]] } else { own == counts };
    Ok((whole && given).then_some(counts))
}

pub(super) fn quantize<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let (along, block) = (c.int_or("axis", 1), block(c)?);
    c.ignore(&["saturate"]);
    let asked = if c.int_or("output_dtype", 0) != 0 { c.dtype("output_dtype")? } else { None };
    let of_zero = c.maybe(2)?.map(Expr::dtype);
    let dtype = of_zero.or(asked).unwrap_or(DType::U8);
    let precision = if c.int_or("precision", 0) != 0 { c.dtype("precision")? } else { None };
    let inner = precision.unwrap_or(if x.dtype().is_float() { x.dtype() } else { scale.dtype() });
    if !inner.is_arithmetic_float() {
        return Err(unsupported(format!("division in {inner}")));
    }
    let zero = offset(c, 2)?;
    if let ([DType::F32, DType::F32, DType::F32], true, Some(counts)) = (
        [x.dtype(), scale.dtype(), inner],
        dtype.is_int() || zero.is_none(),
        covering(&sizes(scale)?, &shape, (along, block))?,
    ) {
        return one(x.quantize(scale.reshape(counts.clone()), zero.map(|zero| zero.reshape(counts)), dtype));
    }
    // A quotient in a short format is rounded to that format before it is rounded to a code.
    let spread_scale = spread(scale.convert(inner), &shape, along, block)?;
    let quotient = (x.convert(inner).widen() / spread_scale.widen()).convert(inner).widen();
    let zero = zero.map(|zero| spread(zero, &shape, along, block)).transpose()?;
    one(codes(quotient, zero, dtype))
}

pub(super) fn dequantize<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let (along, block) = (c.int_or("axis", 1), block(c)?);
    let asked = if c.int_or("output_dtype", 0) != 0 { c.dtype("output_dtype")? } else { None };
    let dtype = asked.unwrap_or(if scale.dtype().is_arithmetic_float() { scale.dtype() } else { DType::F32 });
    let zero = offset(c, 2)?;
    let exact = zero.is_none_or(|zero| zero.dtype().is_int() && x.dtype().bits() <= 16);
    if let (true, Some(counts)) = (exact, covering(&sizes(scale)?, &shape, (along, block))?) {
        let of_codes = |parameter: Expr<'b>| parameter.reshape(counts.clone());
        let numbers = x.dequantize(of_codes(scale), zero.map(of_codes)).convert(dtype);
        let Some(shaped) = as_rows(&shape, (&sizes(scale)?, along, block)) else { return one(numbers) };
        let (scale, zero) = (scale.reshape(shaped), zero.map(|zero| zero.reshape(shaped)));
        return Ok(vec![Value::Coded(Coded { numbers, codes: x, scale, zero })]);
    }
    let wide = if scale.dtype().is_arithmetic_float() { scale.widen() } else { scale.convert(DType::F32) };
    let centred = match zero.map(|zero| spread(zero, &shape, along, block)).transpose()? {
        None => x.convert(wide.dtype()),
        // 32-bit codes come without a zero point of their own; differences of the others fit i32 exactly.
        Some(zero) if x.dtype().is_int() => {
            (x.convert(DType::I32) - zero.convert(DType::I32)).convert(wide.dtype())
        }
        Some(zero) => x.convert(wide.dtype()) - zero.convert(wide.dtype()),
    };
    one((centred * spread(wide, &shape, along, block)?).convert(dtype))
}

/// The shape `[N or 1, G]` of scales that lie along the rows of a matrix of codes `[N, K]`; `None` of all others.
fn as_rows(shape: &[usize], (scales, along, block): (&[usize], i64, usize)) -> Option<[usize; 2]> {
    let [n, k] = *shape else { return None };
    let along = axis(along, 2).ok()?;
    match (scales, block) {
        _ if n * k == 0 => None,
        ([] | [1], 0) => Some([1, 1]),
        ([_], 0) if along == 0 => Some([n, 1]),
        ([_, groups], 1..) if along == 1 && groups * block == k => Some([n, *groups]),
        _ => None,
    }
}

/// u8 codes over the range of x, which includes 0; the scale and zero point beside them.
pub(super) fn dynamic<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let [y, scale, zero] = dynamically(x)?;
    Ok([y, scale, zero].map(Value::from).to_vec())
}

fn dynamically(x: Expr<'_>) -> Result<[Expr<'_>; 3], Fault> {
    let all: Vec<usize> = (0..sizes(x)?.len()).collect();
    let nothing = x.constant(0.0);
    let (high, low) = (x.reduce(Reducer::Max, &all).max(nothing), x.reduce(Reducer::Min, &all).min(nothing));
    let range = high - low;
    let scale = range.compare(Compare::Eq, nothing).select(x.constant(1.0), range) / 255.0;
    let start = -low / scale;
    let zero = start.max(nothing).min(start.constant(255.0)).unary(Unary::Round);
    let shifted = (x / scale).unary(Unary::Round) + zero;
    let y = shifted.max(nothing).min(shifted.constant(255.0)).convert(DType::U8);
    Ok([y, scale, zero.convert(DType::U8)])
}

/// One number, or one per row (or column) of a matrix.
fn lined_up<'b>(parameter: Expr<'b>, side: Side) -> Result<Expr<'b>, Fault> {
    let mut shape = sizes(parameter)?;
    match (shape.len(), side) {
        (1, _) if shape[0] == 1 => Ok(parameter.reshape(Shape::default())),
        (1, Side::Rows) => {
            shape.push(1);
            Ok(parameter.reshape(shape))
        }
        _ => Ok(parameter),
    }
}

pub(super) fn qlinear_matmul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let sums = matmul_codes((c.x(0)?, offset(c, 2)?), (c.x(3)?, offset(c, 5)?))?;
    let scale = |i: usize, side: Side| Ok::<_, Fault>(lined_up(c.x(i)?, side)?.widen());
    let factor = scale(1, Side::Rows)? * scale(4, Side::Columns)? / scale(6, Side::Rows)?;
    let zero = c.x(7)?;
    let zero_rows = lined_up(zero, Side::Rows)?;
    one(codes(sums.convert(factor.dtype()) * factor, Some(zero_rows), zero.dtype()))
}

pub(super) fn qlinear_conv<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let sums = super::conv::convolve_codes(c, [(c.x(0)?, offset(c, 2)?), (c.x(3)?, offset(c, 5)?)])?;
    let per_output = |p: Expr<'b>| {
        Ok::<_, Fault>(match sizes(p)?.iter().product::<usize>() {
            1 => p.reshape(Shape::default()),
            _ => p.broadcast_in(&sums.shape(), &[1]),
        })
    };
    let sums =
        c.maybe(8)?.map_or(sums, |bias| sums + bias.convert(DType::I32).broadcast_in(&sums.shape(), &[1]));
    let number = |i: usize| Ok::<_, Fault>(c.x(i)?.reshape(Shape::default()));
    let factor = per_output(c.x(4)?)? * number(1)? / number(6)?;
    let zero = number(7)?;
    one(codes(sums.convert(DType::F32) * factor, Some(zero), zero.dtype()))
}

/// com.microsoft: x times weights of `bits` each, packed in blocks along K: codes `[N, blocks, bytes]`.
pub(super) fn mat_mul_n_bits<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, packed) = (c.x(0)?, c.x(1)?);
    let size = |name| extent(c.int_or(name, 0));
    let (k, n, bits, block) = (size("K")?, size("N")?, size("bits")?, size("block_size")?);
    c.ignore(&["accuracy_level"]);
    if !matches!(bits, 2 | 4 | 8)
        || block < 16
        || !block.is_power_of_two()
        || block > 1 << 20
        || k > 1 << 31
        || n > 1 << 31
    {
        return Err(invalid(
            "bits of 2, 4 or 8 and blocks of 16 or more",
            format!("{bits} bits, blocks of {block}"),
        ));
    }
    if c.has(4) {
        return Err(unsupported("weights in another order (g_idx)"));
    }
    let blocks = k.div_ceil(block);
    let per_byte = 8 / bits;
    let unpacked = |x: Expr<'b>, shape: Vec<usize>| {
        let count = x.rank();
        let bytes = x.reshape([sizes(x)?, vec![1]].concat());
        let shifts: Vec<i128> = (0..per_byte).map(|i| (i * bits) as i128).collect();
        let shifts = c.b.constant(Tensor::from_ints(DType::U8, [per_byte], &shifts));
        let mask = c.b.constant(Tensor::from_ints(DType::U8, Shape::default(), &[(1 << bits) - 1]));
        let codes = bytes.binary(Binary::Shr, shifts).binary(Binary::And, mask);
        let mut flat = sizes(x)?;
        flat[count - 1] *= per_byte;
        Ok::<_, Fault>(codes.reshape(flat).reshape(shape))
    };
    let row = block / per_byte;
    let codes = unpacked(packed.reshape([n, blocks, row]), vec![n, blocks, block])?;
    let scales = c.x(2)?.reshape([n, blocks, 1]);
    let wide = scales.dtype();
    let zero = match c.maybe(3)? {
        None => scales.constant((1 << (bits - 1)) as f64),
        Some(zero) if zero.dtype() == DType::U8 => {
            let bytes = blocks.div_ceil(per_byte);
            let all = unpacked(zero.reshape([n, bytes]), vec![n, bytes * per_byte])?;
            all.slice_axis(1, 0, blocks).reshape([n, blocks, 1]).convert(wide)
        }
        Some(zero) => zero.reshape([n, blocks, 1]).convert(wide),
    };
    let weights = ((codes.convert(wide) - zero) * scales).reshape([n, blocks * block]).slice_axis(1, 0, k);
    let y = matmul(x, weights.convert(x.dtype()).t(), x.dtype())?;
    one(match c.maybe(5)? {
        Some(bias) => y + bias,
        None => y,
    })
}

/// com.microsoft: x quantized as it comes, times quantized weights.
pub(super) fn dynamic_mat_mul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, w, scale) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let [codes, x_scale, x_zero] = dynamically(x)?;
    let y = matmul_codes((codes, Some(x_zero)), (w, offset(c, 3)?))?.convert(scale.dtype());
    let y = y * lined_up(scale, Side::Columns)? * x_scale;
    one(match c.maybe(4)? {
        Some(bias) => y + bias,
        None => y,
    })
}
