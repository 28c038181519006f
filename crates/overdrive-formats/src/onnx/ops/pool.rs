//! Pooling: largest, mean and p-norm of windows, of everything, and the way back.

use super::window::{Spatial, windows};
use crate::onnx::axes::{extents, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::ops::avg_pool2d::{Padding, Pool2d};
use overdrive_ir::{Binary, Compare, DType, Expr, Pad, Prim, Reducer, Tensor, Unary, Window};

/// The pooled operand and its windows; `extra` elements at the end of each axis make room for
/// `ceil_mode`.
struct Pooling<'b> {
    x: Expr<'b>,
    spatial: Vec<Spatial>,
    extra: Vec<i64>,
}

impl<'b> Pooling<'b> {
    fn of(c: &Call<'_, 'b>) -> Result<Self, Fault> {
        let x = c.x(0)?;
        let shape = sizes(x)?;
        let kernel =
            extents(&c.list("kernel_shape").ok_or_else(|| invalid("a kernel_shape", "none"))?)?;
        if shape.len() != kernel.len() + 2 {
            return Err(invalid(
                format!("x of [N, C, ...] for a kernel {kernel:?}"),
                x.ty().to_string(),
            ));
        }
        let spatial = windows(c, &kernel, &shape[2..])?;
        let ceil = c.flag("ceil_mode", 0);
        let extra =
            spatial.iter().zip(&shape[2..]).map(|(s, &n)| if ceil { s.ceiling(n) } else { 0 });
        let extra = extra.collect();
        Ok(Self { x, spatial, extra })
    }

    /// Folds windows of `x`, whose surroundings are `fill`.
    fn fold(&self, x: Expr<'b>, reducer: Reducer, fill: f64) -> Result<Expr<'b>, Fault> {
        let mut pads = vec![Pad::default(); 2];
        let mut windows =
            vec![Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 }; 2];
        for (s, extra) in self.spatial.iter().zip(&self.extra) {
            pads.push(Pad { low: s.low, high: s.high + extra, interior: 0 });
            let Spatial { size, stride, dilation, .. } = *s;
            windows.push(Window { size, stride, dilation, pad_low: 0, pad_high: 0 });
        }
        let padded = if pads.iter().all(|p| *p == Pad::default()) { x } else { x.pad(pads, fill) };
        let y = x.builder().op1(Prim::ReduceWindow { reducer, windows }, &[padded]);
        sizes(y).map(|_| y)
    }

    /// The geometry of the two-dimensional composites, where they can say it.
    fn pool2d(&self) -> Option<Pool2d> {
        let [h, w] = self.spatial[..] else { return None };
        let simple = |s: &Spatial| {
            s.dilation == 1 && s.low >= 0 && s.high >= 0 && s.low.max(s.high) < s.size as i64
        };
        let plain = simple(&h)
            && simple(&w)
            && self.extra == [0, 0]
            && self.x.dtype().is_arithmetic_float();
        let pad = [h, w].map(|s| [s.low as usize, s.high as usize]);
        plain.then_some(Pool2d { window: [h.size, w.size], stride: [h.stride, w.stride], pad })
    }
}

impl Spatial {
    /// Elements to add at the end so that a last, partial window counts; none where it would start
    /// in the padding.
    fn ceiling(&self, input: usize) -> i64 {
        let (stride, span) =
            (self.stride as i64, input as i64 + self.low + self.high - self.reach());
        let windows = span.div_euclid(stride) + i64::from(span.rem_euclid(stride) != 0) + 1;
        let starts_inside = (windows - 1) * stride < input as i64 + self.low;
        let windows = if starts_inside { windows } else { windows - 1 };
        ((windows - 1) * stride - span).max(0)
    }
}

/// The least value of a type.
fn least(dtype: DType) -> f64 {
    if dtype.is_float() {
        f64::NEG_INFINITY
    } else {
        dtype.int_range().map_or(0.0, |(low, _)| low as f64)
    }
}

pub(super) fn max_pool<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let pooling = Pooling::of(c)?;
    let by_column = c.flag("storage_order", 0);
    if !c.wants(1) {
        return one(match pooling.pool2d() {
            Some(pool) => pooling.x.max_pool2d(pool),
            None => pooling.fold(pooling.x, Reducer::Max, least(pooling.x.dtype()))?,
        });
    }
    // Tap by tap: a strided slice of values and one of positions. The position of the larger value
    // is kept.
    let shape = sizes(pooling.x)?;
    let spatial = &shape[2..];
    let mut order: Vec<usize> = (0..spatial.len()).collect();
    if by_column {
        order.reverse();
    }
    let mut positions = c.b.iota(DType::I64, shape.clone(), 0);
    positions = scaled(positions, shape[1]) + c.b.iota(DType::I64, shape.clone(), 1);
    for d in order {
        positions = scaled(positions, spatial[d]) + c.b.iota(DType::I64, shape.clone(), 2 + d);
    }
    let whole = |x: Expr<'b>, fill: f64| {
        let mut pads = vec![Pad::default(); 2];
        let edges = pooling.spatial.iter().zip(&pooling.extra);
        pads.extend(edges.map(|(s, extra)| Pad { low: s.low, high: s.high + extra, interior: 0 }));
        x.pad(pads, fill)
    };
    let (x, positions) = (whole(pooling.x, least(pooling.x.dtype())), whole(positions, 0.0));
    let padded = sizes(x)?;
    let counts: Vec<usize> = pooling
        .spatial
        .iter()
        .zip(&padded[2..])
        .map(|(s, &n)| ((n as i64 - s.reach()).div_euclid(s.stride as i64) + 1).max(0) as usize)
        .collect();
    let taps = pooling.spatial.iter().map(|s| s.size).fold(1, usize::saturating_mul);
    if taps > 4096 {
        return Err(crate::onnx::fault::unsupported(format!("positions of {taps} taps")));
    }
    let mut best: Option<[Expr<'b>; 2]> = None;
    for tap in 0..taps {
        let (mut start, mut limit, mut stride) = (vec![0; 2], shape[..2].to_vec(), vec![1; 2]);
        let mut rest = tap;
        let mut at = vec![0; pooling.spatial.len()];
        for d in (0..at.len()).rev() {
            at[d] = rest % pooling.spatial[d].size;
            rest /= pooling.spatial[d].size;
        }
        for (d, s) in pooling.spatial.iter().enumerate() {
            let first = at[d] * s.dilation;
            start.push(first);
            limit.push((first + (counts[d].max(1) - 1) * s.stride + 1).min(padded[2 + d]));
            stride.push(s.stride);
        }
        let part = |x: Expr<'b>| {
            let slice =
                Prim::Slice { start: start.clone(), limit: limit.clone(), stride: stride.clone() };
            c.b.op1(slice, &[x])
        };
        let new = [part(x), part(positions)];
        best = Some(match best {
            None => new,
            Some([value, position]) => {
                let wins = new[0].compare(Compare::Gt, value);
                [wins.select(new[0], value), wins.select(new[1], position)]
            }
        });
    }
    let [value, position] = best.ok_or_else(|| invalid("a window with taps", "none"))?;
    Ok(vec![value.into(), position.into()])
}

fn scaled(x: Expr<'_>, by: usize) -> Expr<'_> {
    x * x.constant(by as f64)
}

pub(super) fn average_pool<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let pooling = Pooling::of(c)?;
    let counts_padding = c.flag("count_include_pad", 0);
    if let Some(pool) = pooling.pool2d() {
        let padding = if counts_padding { Padding::Counted } else { Padding::LeftOut };
        return one(pooling.x.avg_pool2d(pool, padding));
    }
    let x = pooling.x.widen();
    let sums = pooling.fold(x, Reducer::Sum, 0.0)?;
    // Number of elements that each window saw. Requested padding counts, but not the padding that
    // `ceil_mode` added.
    let ones = c.b.full(x.dtype(), x.shape(), 1.0);
    let seen = if counts_padding {
        let mut pads = vec![Pad::default(); 2];
        pads.extend(pooling.spatial.iter().map(|s| Pad { low: s.low, high: s.high, interior: 0 }));
        let bare: Vec<Spatial> =
            pooling.spatial.iter().map(|s| Spatial { low: 0, high: 0, ..*s }).collect();
        Pooling { x, spatial: bare, extra: pooling.extra.clone() }.fold(
            ones.pad(pads, 1.0),
            Reducer::Sum,
            0.0,
        )?
    } else {
        pooling.fold(ones, Reducer::Sum, 0.0)?
    };
    one((sums / seen).convert(pooling.x.dtype()))
}

/// `(Σ |x|ᵖ)^(1/p)` of each window.
pub(super) fn lp_pool<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let pooling = Pooling::of(c)?;
    let p = match c.attribute("p") {
        Some(a) if a.f() != 0.0 => f64::from(a.f()),
        Some(a) => a.i() as f64,
        None => 2.0,
    };
    let x = pooling.x.widen();
    let sums = pooling.fold(power(x, p), Reducer::Sum, 0.0)?;
    one(root(sums, p).convert(pooling.x.dtype()))
}

/// `|x|ᵖ`
fn power(x: Expr<'_>, p: f64) -> Expr<'_> {
    match p {
        1.0 => x.unary(Unary::Abs),
        2.0 => x * x,
        _ => x.unary(Unary::Abs).binary(Binary::Pow, x.constant(p)),
    }
}

fn root(x: Expr<'_>, p: f64) -> Expr<'_> {
    match p {
        1.0 => x,
        2.0 => x.sqrt(),
        _ => x.binary(Binary::Pow, x.constant(1.0 / p)),
    }
}

/// Every axis but the first two, kept with extent 1.
fn spatial_axes(x: Expr<'_>) -> Result<Vec<usize>, Fault> {
    match x.rank() {
        0 | 1 => Err(invalid("x of [N, C, ...]", x.ty().to_string())),
        rank => Ok((2..rank).collect()),
    }
}

pub(super) fn global_average<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let axes = spatial_axes(x)?;
    let mut shape = sizes(x)?;
    shape[2..].fill(1);
    let plain = !axes.is_empty() && x.dtype().is_arithmetic_float();
    one(if plain { x.global_avg_pool().reshape(shape) } else { x })
}

pub(super) fn global_max<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    one(x.reduce_keep(Reducer::Max, &spatial_axes(x)?))
}

pub(super) fn global_lp<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let p = c.int_or("p", 2) as f64;
    let sums = power(x.widen(), p).reduce_keep(Reducer::Sum, &spatial_axes(x)?);
    one(root(sums, p).convert(x.dtype()))
}

/// Puts pooled values back where they came from.
pub(super) fn max_unpool<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, indices) = (c.x(0)?, c.x(1)?);
    let shape = sizes(x)?;
    let kernel = extents(&c.list("kernel_shape").unwrap_or_default())?;
    if shape.len() != kernel.len() + 2 {
        return Err(invalid(
            format!("x of [N, C, ...] for a kernel {kernel:?}"),
            x.ty().to_string(),
        ));
    }
    let spatial = windows(c, &kernel, &shape[2..])?;
    let natural = |d: usize| {
        let s = &spatial[d];
        (shape[2 + d] as i64 - 1) * s.stride as i64 + s.size as i64 - s.low - s.high
    };
    let mut inferred: Vec<usize> = shape[..2].to_vec();
    inferred.extend((0..kernel.len()).map(|d| natural(d).max(0) as usize));
    // Indices count in the tensor that was pooled, whose sizes the asked-for output may exceed.
    let target = match c.maybe_ints(2)? {
        Some(asked) => extents(&asked)?,
        None => inferred.clone(),
    };
    let count = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let (Some(values), Some(places)) = (count(&shape), count(&inferred)) else {
        return Err(invalid("shapes that can be addressed", format!("{target:?}")));
    };
    if target.len() != inferred.len()
        || target.iter().zip(&inferred).any(|(t, i)| t < i)
        || places == 0
    {
        return Err(invalid(format!("an output of at least {inferred:?}"), format!("{target:?}")));
    }
    let zeros =
        c.b.constant(Tensor::scalar(x.dtype(), 0.0)).broadcast_in(&vec![places].into(), &[]);
    let rows = indices.convert(DType::I64).reshape([values, 1]);
    let placed = c
        .b
        .op1(Prim::Scatter { axes: vec![0], reducer: None }, &[zeros, rows, x.reshape([values])]);
    let pads = target.iter().zip(&inferred).map(|(t, i)| Pad {
        low: 0,
        high: (t - i) as i64,
        interior: 0,
    });
    one(placed.reshape(inferred.clone()).pad(pads.collect(), 0.0))
}
