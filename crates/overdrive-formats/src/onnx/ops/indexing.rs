//! Ops whose positions are data or attributes: slice, pad, gather, scatter and their kin.

use crate::onnx::axes::{axis, broadcast, extent, extents, pick, reverse, sizes, take};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use overdrive_ir::{Compare, DType, Expr, Pad, Prim, Reducer, Tensor};

/// Starts, ends, axes and steps are operands since opset 10; they must be known, since they decide
/// the shape.
pub(super) fn slice<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let (starts, ends, along, steps) = if c.count() > 1 {
        (c.ints(1)?, c.ints(2)?, c.maybe_ints(3)?, c.maybe_ints(4)?)
    } else {
        let required = |name| c.list(name).ok_or_else(|| invalid(format!("`{name}`"), "none"));
        (required("starts")?, required("ends")?, c.list("axes"), None)
    };
    let along = along.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        return Err(invalid(
            "as many starts, ends, axes and steps",
            format!("{starts:?} {ends:?} {along:?} {steps:?}"),
        ));
    }
    let (mut first, mut limit, mut stride) =
        (vec![0; shape.len()], shape.clone(), vec![1; shape.len()]);
    let mut backwards = Vec::new();
    for i in 0..starts.len() {
        let a = axis(along[i], shape.len())?;
        let n = shape[a] as i64;
        let wrap = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
        let (start, end, step) = (wrap(starts[i]), wrap(ends[i]), steps[i]);
        if step == 0 {
            return Err(invalid("steps other than 0", format!("{steps:?}")));
        }
        let pace = step.unsigned_abs();
        // Walking backwards from the start is walking forwards from the last that is reached,
        // reversed.
        let (start, end) = match step > 0 {
            true => (start.clamp(0, n), end.clamp(0, n)),
            false => {
                backwards.push(a);
                let end = if ends[i] < -n { -1 } else { end };
                let (start, end) = (start.clamp(-1, n - 1), end.clamp(-1, n - 1));
                let span = (start - end).max(0) as u64;
                let walked = span.saturating_sub(1) / pace * pace;
                if span == 0 { (0, 0) } else { (start - walked as i64, start + 1) }
            }
        };
        first[a] = start as usize;
        limit[a] = end.max(start) as usize;
        stride[a] = usize::try_from(pace).unwrap_or(usize::MAX);
    }
    let part = c.b.op1(Prim::Slice { start: first, limit, stride }, &[x]);
    one(backwards.into_iter().try_fold(part, reverse)?)
}

/// Pads are operands since opset 11; a negative one crops.
pub(super) fn pad<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let rank = shape.len();
    let given =
        if c.has(1) { Some(c.ints(1)?) } else { c.list("pads").or_else(|| c.list("paddings")) };
    let given = given.ok_or_else(|| invalid("pads", "none"))?;
    let along: Vec<usize> = match c.maybe_ints(3)? {
        Some(list) => list.iter().map(|&a| axis(a, rank)).collect::<Result<_, Fault>>()?,
        None => (0..rank).collect(),
    };
    if given.len() != 2 * along.len() {
        return Err(invalid(format!("{} pads", 2 * along.len()), format!("{given:?}")));
    }
    let pads: Vec<(usize, i64, i64)> =
        along.iter().enumerate().map(|(i, &a)| (a, given[i], given[i + along.len()])).collect();
    if pads
        .iter()
        .any(|&(_, low, high)| low.unsigned_abs() > 1 << 40 || high.unsigned_abs() > 1 << 40)
    {
        return Err(invalid("pads that can be addressed", format!("{given:?}")));
    }
    match c.text_or("mode", "constant").as_str() {
        "constant" => {
            let value = match c.maybe(2)? {
                Some(value) => value.reshape(overdrive_ir::Shape::default()),
                None => x.constant(c.float_or("value", 0.0)),
            };
            let mut all = vec![Pad::default(); rank];
            for (a, low, high) in pads {
                all[a] = Pad { low, high, interior: 0 };
            }
            one(c.b.op1(Prim::Pad { pads: all }, &[x, value]))
        }
        mode => pads
            .into_iter()
            .try_fold(x, |x, (a, low, high)| mirrored(x, a, [low, high], mode))
            .and_then(one),
    }
}

/// Rows beyond the ends of an axis, taken from inside it.
fn mirrored<'b>(
    x: Expr<'b>,
    axis: usize,
    [low, high]: [i64; 2],
    mode: &str,
) -> Result<Expr<'b>, Fault> {
    let n = sizes(x)?[axis] as i64;
    if [low, high] == [0, 0] {
        return Ok(x);
    }
    if n == 0 {
        return Err(invalid("an axis with elements", x.ty().to_string()));
    }
    if !["edge", "wrap", "reflect"].contains(&mode) {
        return Err(unsupported(format!("padding mode `{mode}`")));
    }
    let source = |i: i64| match mode {
        "edge" => i.clamp(0, n - 1),
        "wrap" => i.rem_euclid(n),
        // 0 1 2 3 2 1 0 1 ...: the period is twice the gaps.
        _ if n == 1 => 0,
        _ => {
            let at = i.rem_euclid(2 * (n - 1));
            at.min(2 * (n - 1) - at)
        }
    };
    let count = (low + n + high).max(0) as usize;
    pick(x, count, |i| source(i as i64 - low) as usize, axis)
}

/// Indices from the end, where negative ones are allowed.
pub(super) fn wrapped(indices: Expr<'_>, n: usize) -> Expr<'_> {
    let indices = indices.convert(DType::I64);
    indices
        .compare(Compare::Lt, indices.constant(0.0))
        .select(indices + indices.constant(n as f64), indices)
}

pub(super) fn gather<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let along = axis(c.int_or("axis", 0), shape.len())?;
    let n = shape[along] as f64;
    if let Some(wrong) =
        c.peek(1).and_then(|t| t.to_f64().into_iter().find(|i| !(-n..n).contains(i)))
    {
        return Err(invalid(format!("indices of an axis of {n}"), wrong.to_string()));
    }
    // The usual table of vectors, at indices that are surely positive.
    let positive = c.peek(1).is_some_and(|t| t.to_f64().iter().all(|i| *i >= 0.0));
    let indices = if positive { indices } else { wrapped(indices, shape[along]) };
    if along == 0 && shape.len() == 2 && shape[0] > 0 && x.dtype().is_arithmetic_float() {
        return one(x.embedding(indices));
    }
    one(take(x, indices, along)?)
}

/// Whole positions for indices along one axis: the other coordinates count up. `[..., rank]`.
fn coordinates<'b>(indices: Expr<'b>, axis: usize, n: usize) -> Result<Expr<'b>, Fault> {
    let mut column = sizes(indices)?;
    let rank = column.len();
    let own = wrapped(indices, n);
    let b = indices.builder();
    let parts: Vec<Expr<'b>> = (0..rank)
        .map(|d| if d == axis { own } else { b.iota(DType::I64, indices.shape(), d) })
        .collect();
    column.push(1);
    let parts: Vec<Expr<'b>> = parts.into_iter().map(|p| p.reshape(column.clone())).collect();
    Ok(b.concat(&parts, rank))
}

fn non_empty(x: Expr<'_>, indices: Expr<'_>) -> Result<(), Fault> {
    if sizes(x)?.contains(&0) && !sizes(indices)?.contains(&0) {
        return Err(invalid("elements to index", x.ty().to_string()));
    }
    Ok(())
}

pub(super) fn gather_elements<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let along = axis(c.int_or("axis", 0), shape.len())?;
    non_empty(x, indices)?;
    if indices.rank() != shape.len() {
        return Err(invalid(
            format!("indices of {} dimensions", shape.len()),
            indices.ty().to_string(),
        ));
    }
    let all: Vec<usize> = (0..shape.len()).collect();
    one(x.gather(coordinates(indices, along, shape[along])?, &all))
}

fn reduction(c: &Call<'_, '_>) -> Result<Option<Reducer>, Fault> {
    Ok(match c.text_or("reduction", "none").as_str() {
        "none" => None,
        "add" => Some(Reducer::Sum),
        "mul" => Some(Reducer::Prod),
        "max" => Some(Reducer::Max),
        "min" => Some(Reducer::Min),
        other => return Err(invalid("reduction none, add, mul, max or min", other)),
    })
}

/// Wraps the indices of each indexed axis: `indices [..., k]` of the first k axes after `first`.
fn wrap_each<'b>(indices: Expr<'b>, extents: &[usize]) -> Expr<'b> {
    let indices = indices.convert(DType::I64);
    let limits: Vec<i128> = extents.iter().map(|&n| n as i128).collect();
    let limits = indices.builder().constant(Tensor::from_ints(DType::I64, [limits.len()], &limits));
    indices.compare(Compare::Lt, indices.constant(0.0)).select(indices + limits, indices)
}

pub(super) fn scatter_elements<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices, updates) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let shape = sizes(x)?;
    let along = axis(c.int_or("axis", 0), shape.len())?;
    non_empty(x, indices)?;
    if indices.rank() != shape.len() {
        return Err(invalid(
            format!("indices of {} dimensions", shape.len()),
            indices.ty().to_string(),
        ));
    }
    let axes = (0..shape.len()).collect();
    let positions = coordinates(indices, along, shape[along])?;
    one(c.b.op1(Prim::Scatter { axes, reducer: reduction(c)? }, &[x, positions, updates]))
}

pub(super) fn scatter_nd<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices, updates) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let shape = sizes(x)?;
    non_empty(x, indices)?;
    let depth = sizes(indices)?.last().copied().filter(|&k| k <= shape.len());
    let depth = depth.ok_or_else(|| {
        invalid("indices of [..., k], k at most the rank", indices.ty().to_string())
    })?;
    let positions = wrap_each(indices, &shape[..depth]);
    let axes = (0..depth).collect();
    one(c.b.op1(Prim::Scatter { axes, reducer: reduction(c)? }, &[x, positions, updates]))
}

/// Batch dimensions become coordinates that count up.
pub(super) fn gather_nd<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices) = (c.x(0)?, c.x(1)?);
    let (shape, at) = (sizes(x)?, sizes(indices)?);
    let batch = extent(c.int_or("batch_dims", 0))?;
    non_empty(x, indices)?;
    let depth = at.last().copied().filter(|&k| batch < at.len() && batch + k <= shape.len());
    let depth = depth.ok_or_else(|| {
        invalid("indices of [..., k], k at most the rank", indices.ty().to_string())
    })?;
    let own = wrap_each(indices, &shape[batch..batch + depth]);
    let mut column = at.clone();
    column[at.len() - 1] = 1;
    let counters = (0..batch).map(|d| c.b.iota(DType::I64, column.clone(), d));
    let parts: Vec<Expr<'b>> = counters.chain([own]).collect();
    let positions = c.b.concat(&parts, at.len() - 1);
    one(x.gather(positions, &(0..batch + depth).collect::<Vec<usize>>()))
}

/// The slices of `axis` that a known condition picks.
pub(super) fn compress<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let condition = c.known(1)?.to_f64();
    let positions: Vec<usize> = (0..condition.len()).filter(|&i| condition[i] != 0.0).collect();
    let (x, along, n) = match c.attribute("axis") {
        Some(a) => {
            let along = axis(a.i(), shape.len())?;
            (x, along, shape[along])
        }
        None => {
            let n = shape.iter().product();
            (x.reshape([n]), 0, n)
        }
    };
    if positions.last().is_some_and(|&last| last >= n) {
        return Err(invalid(
            format!("a condition for {n} slices"),
            format!("{} values", condition.len()),
        ));
    }
    one(pick(x, positions.len(), |i| positions[i], along)?)
}

/// Positions of what is not 0: their number is the shape, so the operand must be known.
pub(super) fn non_zero<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let tensor = c.known(0)?;
    let shape = tensor.ty().sizes();
    let strides = overdrive_ir::row_major(&shape);
    let values = tensor.to_f64();
    let found: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    let rows = (0..shape.len()).flat_map(|d| {
        let (stride, n) = (strides[d], shape[d]);
        found.iter().map(move |&i| (i / stride % n.max(1)) as i128)
    });
    one(Tensor::from_ints(DType::I64, [shape.len(), found.len()], &rows.collect::<Vec<i128>>()))
}

/// The first `length` elements of each row backwards, the rest as they are.
pub(super) fn reverse_sequence<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, lengths) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let (time, batch) = (
        axis(c.int_or("time_axis", 0), shape.len())?,
        axis(c.int_or("batch_axis", 1), shape.len())?,
    );
    if time == batch {
        return Err(invalid("a time axis other than the batch axis", format!("axis {time}")));
    }
    non_empty(x, lengths)?;
    let plane = [shape[batch], shape[time]];
    let lengths = lengths.convert(DType::I64).broadcast_in(&overdrive_ir::Shape::from(plane), &[0]);
    let (row, step) = (c.b.iota(DType::I64, plane, 0), c.b.iota(DType::I64, plane, 1));
    let back = lengths - step.constant(1.0) - step;
    let source = step.compare(Compare::Lt, lengths).select(back, step);
    let [row, source] = [row, source].map(|p| p.reshape([plane[0], plane[1], 1]));
    // Gather wants its axes in order: batch and time in front, the rest behind.
    let mut front: Vec<usize> = vec![batch, time];
    front.extend((0..shape.len()).filter(|a| *a != batch && *a != time));
    let rows = x.transpose(&front).gather(c.b.concat(&[row, source], 2), &[0, 1]);
    let back: Vec<usize> =
        (0..shape.len()).map(|a| front.iter().position(|f| *f == a).unwrap_or(a)).collect();
    one(rows.transpose(&back))
}

/// Writes rows into a cache at per-batch positions along an axis.
pub(super) fn tensor_scatter<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (cache, update) = (c.x(0)?, c.x(1)?);
    let (shape, new) = (sizes(cache)?, sizes(update)?);
    let along = axis(c.int_or("axis", -2), shape.len())?;
    if along == 0 || new.len() != shape.len() {
        return Err(invalid("a batch dimension before the axis", cache.ty().to_string()));
    }
    non_empty(cache, update)?;
    let mut position = c.b.iota(DType::I64, new.clone(), along);
    if let Some(starts) = c.maybe(2)? {
        position = position
            + starts.convert(DType::I64).broadcast_in(&overdrive_ir::Shape::from(&new[..]), &[0]);
    }
    if c.text_or("mode", "linear") == "circular" {
        position =
            position.binary(overdrive_ir::Binary::Rem, position.constant(shape[along] as f64));
    }
    let axes: Vec<usize> = (0..shape.len()).collect();
    let positions = coordinates(position, along, shape[along])?;
    one(c.b.op1(Prim::Scatter { axes, reducer: None }, &[cache, positions, update]))
}

/// Constant of a shape, or of the shape of another tensor.
pub(super) fn constant_of_shape<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let shape = extents(&c.ints(0)?)?;
    let value = match c.attribute("value").and_then(|a| a.t.as_ref()) {
        Some(proto) => c.storage.tensor(proto)?,
        None => Tensor::scalar(DType::F32, 0.0),
    };
    if value.ty().elements() != 1 {
        return Err(invalid("a value of one element", value.ty().to_string()));
    }
    let value = c.b.constant(value).reshape(overdrive_ir::Shape::default());
    one(broadcast(value, &shape))
}
