//! Normalisations. Those that are a composite of ours become it; the others are written out.

use super::conv::per_channel;
use crate::onnx::axes::{axes, axis, broadcast, positive, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::ItemValue;
use overdrive_ir::{Binary, Compare, DType, Expr, Prim, Reducer, Unary, Window};

/// x as rows `[..., N]` over the axes from `axis` on, the extents of those axes, and those of x.
fn rows<'b>(c: &Call<'_, 'b>) -> Result<(Expr<'b>, Vec<usize>, Vec<usize>), Fault> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let first = axis(c.int_or("axis", -1), shape.len())?;
    let row = shape[first..].to_vec();
    let mut flat = shape[..first].to_vec();
    flat.push(row.iter().product());
    c.ignore(&["stash_type"]);
    Ok((x.reshape(flat), row, shape))
}

/// A parameter of rows, spread over them and flattened.
fn flat<'b>(parameter: Expr<'b>, row: &[usize], like: Expr<'b>) -> Expr<'b> {
    let n: usize = row.iter().product();
    broadcast(parameter.convert(like.dtype()), row).reshape([n])
}

/// Mean and 1 / √(variance + ε) of rows, in the accumulation type.
fn statistics(x: Expr<'_>, eps: f64) -> [Expr<'_>; 2] {
    let last = [x.rank().saturating_sub(1)];
    let mean = x.mean_keep(&last);
    let centred = x - mean;
    [mean, ((centred * centred).mean_keep(&last) + eps).rsqrt()]
}

pub(super) fn layer_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let eps = c.float_or("epsilon", 1e-5);
    let (x, row, shape) = rows(c)?;
    let scale = flat(c.x(1)?, &row, x);
    let bias = match c.maybe(2)? {
        Some(bias) => flat(bias, &row, x),
        None => c.b.full(x.dtype(), scale.shape(), 0.0),
    };
    let y = x.layer_norm(scale, bias, eps).reshape(shape.clone());
    let mut results = vec![ItemValue::from(y)];
    if c.wants(1) || c.wants(2) {
        let mut kept = shape[..shape.len() - row.len()].to_vec();
        kept.extend(vec![1; row.len()]);
        results
            .extend(statistics(x.widen(), eps).map(|s| ItemValue::from(s.reshape(kept.clone()))));
    }
    Ok(results)
}

pub(super) fn rms_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let eps = c.float_or("epsilon", 1e-5);
    let (x, row, shape) = rows(c)?;
    let scale = flat(c.x(1)?, &row, x);
    let y = x.rms_norm(scale, eps).reshape(shape);
    let mut results = vec![ItemValue::from(y)];
    if c.wants(1) {
        let wide = x.widen();
        let inverse = ((wide * wide).mean_keep(&[x.rank() - 1]) + eps).rsqrt();
        results.push(inverse.into());
    }
    Ok(results)
}

/// The sum that com.microsoft adds before a norm: input, skip and bias.
fn skipped<'b>(c: &Call<'_, 'b>, bias: usize) -> Result<Expr<'b>, Fault> {
    let (x, skip) = (c.x(0)?, c.x(1)?);
    Ok(c.maybe(bias)?.map_or(x + skip, |bias| x + skip + bias))
}

/// com.microsoft: outputs y, mean, inverse deviation and the sum that was normalised.
pub(super) fn skip_layer_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let eps = c.float_or("epsilon", 1e-12);
    let x = skipped(c, 4)?;
    sizes(x)?;
    let scale = c.x(2)?;
    let bias = c.maybe(3)?.unwrap_or_else(|| c.b.full(x.dtype(), scale.shape(), 0.0));
    let [mean, rstd] = statistics(x.widen(), eps);
    Ok([x.layer_norm(scale, bias, eps), mean, rstd, x].map(ItemValue::from).to_vec())
}

/// com.microsoft: the same with a root mean square.
pub(super) fn skip_rms_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let eps = c.float_or("epsilon", 1e-12);
    let x = skipped(c, 3)?;
    sizes(x)?;
    let [mean, rstd] = statistics(x.widen(), eps);
    Ok([x.rms_norm(c.x(2)?, eps), mean, rstd, x].map(ItemValue::from).to_vec())
}

pub(super) fn batch_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let eps = c.float_or("epsilon", 1e-5);
    let momentum = c.float_or("momentum", 0.9);
    c.ignore(&["spatial", "is_test", "consumed_inputs"]);
    if !c.flag("spatial", 1) {
        return Err(unsupported("statistics per position (spatial = 0)"));
    }
    let shape = sizes(x)?;
    let flat = if shape.len() == 1 { x.reshape([shape[0], 1]) } else { x };
    let parameter = |i: usize| Ok::<_, Fault>(c.x(i)?.convert(x.dtype()));
    let (scale, bias) = (parameter(1)?, parameter(2)?);
    if !c.flag("training_mode", 0) {
        return one(flat
            .batch_norm([scale, bias, parameter(3)?, parameter(4)?], eps)
            .reshape(shape));
    }
    let [y, mean, variance] = flat.batch_norm_training(scale, bias, eps);
    let running = |i: usize, new: Expr<'b>| {
        let old = c.x(i)?;
        Ok::<_, Fault>(old * momentum + new.convert(old.dtype()) * (1.0 - momentum))
    };
    Ok([y.reshape(shape), running(3, mean)?, running(4, variance)?].map(ItemValue::from).to_vec())
}

/// Centred and scaled over `axes`, in the accumulation type.
fn standardised<'b>(x: Expr<'b>, axes: &[usize], eps: f64) -> Expr<'b> {
    let centred = x - x.mean_keep(axes);
    centred * ((centred * centred).mean_keep(axes) + eps).rsqrt()
}

pub(super) fn instance_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    if sizes(x)?.len() < 2 {
        return Err(invalid("x of [N, C, ...]", x.ty().to_string()));
    }
    let axes: Vec<usize> = (2..x.rank()).collect();
    let normal = standardised(x.widen(), &axes, c.float_or("epsilon", 1e-5));
    let [scale, bias] =
        [per_channel(c.x(1)?.widen(), normal), per_channel(c.x(2)?.widen(), normal)];
    one((normal * scale + bias).convert(x.dtype()))
}

/// Scale and bias are per group in opset 18, per channel since 21.
pub(super) fn group_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let groups = positive(c.int_or("num_groups", 0), "a number of groups")?;
    c.ignore(&["stash_type"]);
    if shape.len() < 2 || shape[1] % groups != 0 {
        return Err(invalid(format!("channels that {groups} groups divide"), x.ty().to_string()));
    }
    let mut split = vec![shape[0], groups, shape[1] / groups];
    split.extend(&shape[2..]);
    let axes: Vec<usize> = (2..split.len()).collect();
    let normal = standardised(x.widen().reshape(split.clone()), &axes, c.float_or("epsilon", 1e-5));
    let spread = |i: usize| {
        let parameter = c.x(i)?.widen();
        Ok::<_, Fault>(match sizes(parameter)?[..] {
            [n] if n == groups && n != shape[1] => {
                parameter.broadcast_in(&split.clone().into(), &[1]).reshape(shape.clone())
            }
            _ => per_channel(parameter, normal.reshape(shape.clone())),
        })
    };
    one((normal.reshape(shape.clone()) * spread(1)? + spread(2)?).convert(x.dtype()))
}

/// Across neighbouring channels.
pub(super) fn local_response<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let rank = sizes(x)?.len();
    let size = positive(c.int_or("size", 1), "a size")?;
    if rank < 2 || size > 1 << 20 {
        return Err(invalid("x of [N, C, ...] and a small size", x.ty().to_string()));
    }
    let (alpha, beta, bias) =
        (c.float_or("alpha", 1e-4), c.float_or("beta", 0.75), c.float_or("bias", 1.0));
    let mut windows =
        vec![Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 }; rank];
    windows[1] =
        Window { size, stride: 1, dilation: 1, pad_low: (size - 1) / 2, pad_high: size / 2 };
    let wide = x.widen();
    let sums = c.b.op1(Prim::ReduceWindow { reducer: Reducer::Sum, windows }, &[wide * wide]);
    let base = sums * (alpha / size as f64) + bias;
    one((wide / base.binary(Binary::Pow, base.constant(beta))).convert(x.dtype()))
}

/// Divided by the norm along an axis; a vector of zeros stays one.
pub(super) fn lp_norm<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let along = axis(c.int_or("axis", -1), sizes(x)?.len())?;
    let wide = x.widen();
    let norm = match c.int_or("p", 2) {
        1 => wide.unary(Unary::Abs).reduce_keep(Reducer::Sum, &[along]),
        2 => (wide * wide).reduce_keep(Reducer::Sum, &[along]).sqrt(),
        p => return Err(invalid("p of 1 or 2", p.to_string())),
    };
    let nothing = norm.compare(Compare::Eq, norm.constant(0.0));
    one(nothing
        .select(wide * 0.0, wide / nothing.select(norm.constant(1.0), norm))
        .convert(x.dtype()))
}

pub(super) fn mean_variance<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let over = axes(&c.list("axes").unwrap_or_else(|| vec![0, 2, 3]), sizes(x)?.len())?;
    let wide = x.widen();
    let centred = wide - wide.mean_keep(&over);
    let deviation = (centred * centred).mean_keep(&over).sqrt();
    one((centred / (deviation + 1e-9)).convert(x.dtype()))
}

/// Inference: the identity. Training draws from a generator that ONNX leaves open, so only ratio 0
/// has one answer.
pub(super) fn dropout<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    c.ignore(&["seed", "is_test", "consumed_inputs"]);
    let trains = c.has(2) && c.number(2)? != 0.0;
    let ratio = if c.has(1) && trains { c.number(1)? } else { c.float_or("ratio", 0.5) };
    if trains && ratio != 0.0 {
        return Err(unsupported("dropout in training, whose random numbers ONNX does not define"));
    }
    let x = c.x(0)?;
    let mask = if c.opset < 10 { x.dtype() } else { DType::Bool };
    Ok(vec![c.value(0)?, c.b.full(mask, x.shape(), 1.0).into()])
}
