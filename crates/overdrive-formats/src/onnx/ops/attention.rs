//! Attention in its ONNX forms, and rotary positions.
//!
//! A node without mask, cap or requested scores becomes our composite. Any other node is written
//! out: scores, cap, bias, softmax, product. A row that sees no key gives 0 either way.

use super::matmul::dot;
use crate::onnx::axes::{common, exactly, positive, sizes, take};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use crate::onnx::item::ItemValue;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{Binary, Compare, DType, Expr, Pad, Prim, Reducer, Shape};

/// A factor of the scores.
pub(super) fn finite(scale: f64) -> Result<f64, Fault> {
    let found = || invalid("a finite scale", scale.to_string());
    scale.is_finite().then_some(scale).ok_or_else(found)
}

/// `[B, T, H D]` as `[B, H, T, D]`.
pub(super) fn heads<'b>(x: Expr<'b>, heads: usize) -> Result<Expr<'b>, Fault> {
    let [batch, steps, width] = exactly(x, "a sequence")?;
    if width % heads != 0 {
        return Err(invalid(format!("a width that {heads} heads divide"), x.ty().to_string()));
    }
    Ok(x.reshape([batch, steps, heads, width / heads]).transpose(&[0, 2, 1, 3]))
}

/// `[B, H, T, D]` as `[B, T, H D]`.
pub(super) fn merged(x: Expr<'_>) -> Result<Expr<'_>, Fault> {
    let [batch, heads, steps, width] = exactly(x, "heads")?;
    Ok(x.transpose(&[0, 2, 1, 3]).reshape([batch, steps, heads * width]))
}

/// Joins a cache and what is new along the sequence.
pub(super) fn cached<'b>(past: Option<Expr<'b>>, new: Expr<'b>) -> Expr<'b> {
    past.map_or(new, |past| new.builder().concat(&[past, new], 2))
}

/// Scores and what follows them, written out.
pub(super) struct WrittenOut<'b> {
    pub(super) scale: f64,
    /// Largest score, by a hyperbolic tangent; 0 for none.
    pub(super) cap: f64,
    /// Added to the scores, broadcasting.
    pub(super) bias: Option<Expr<'b>>,
    /// Whether a query sees a key, broadcasting.
    pub(super) visible: Option<Expr<'b>>,
}

impl<'b> WrittenOut<'b> {
    /// The output, then the scores raw, capped, with bias and as probabilities.
    pub(super) fn apply(&self, [q, k, v]: [Expr<'b>; 3]) -> Result<[Expr<'b>; 5], Fault> {
        let dtype = q.dtype();
        let [batch, heads, queries, width] = exactly(q, "q")?;
        let [_, shared, keys, _] = exactly(k, "k")?;
        let [_, _, _, value_width] = exactly(v, "v")?;
        if shared == 0 || heads % shared != 0 {
            return Err(invalid(
                "query heads that the key heads divide",
                format!("{} and {}", q.ty(), k.ty()),
            ));
        }
        let group = heads / shared;
        let pairs = [(0, 0), (1, 1)];
        let grouped = q.widen().reshape([batch, shared, group * queries, width]);
        let scores = dot(grouped, k.widen(), &pairs, &[(3, 3)], dtype.accumulation()) * self.scale;
        let shape = [batch, heads, queries, keys];
        let raw = scores.reshape(shape);
        let capped = if self.cap > 0.0 { (raw / self.cap).tanh() * self.cap } else { raw };
        let hidden = raw.constant(f64::NEG_INFINITY);
        let spread = |x: Expr<'b>| {
            common(&sizes(x)?, &shape)?;
            Ok::<_, Fault>(x.broadcast_to(&Shape::from(shape)))
        };
        let mut biased = match self.bias {
            Some(bias) => capped + spread(bias.convert(raw.dtype()))?,
            None => capped,
        };
        if let Some(visible) = self.visible {
            biased = spread(visible)?.select(biased, hidden);
        }
        // The softmax, with 0 for rows whose scores are all -∞.
        let largest = biased.reduce_keep(Reducer::Max, &[3]);
        let blind = largest.compare(Compare::Eq, hidden);
        let shifted = (biased - blind.select(largest.constant(0.0), largest)).exp();
        let sum = shifted.reduce_keep(Reducer::Sum, &[3]);
        let p = shifted / blind.select(sum.constant(1.0), sum);
        let rows = p.convert(dtype).reshape([batch, shared, group * queries, keys]);
        let y =
            dot(rows, v, &pairs, &[(3, 2)], dtype).reshape([batch, heads, queries, value_width]);
        sizes(y)?;
        Ok([y, raw, capped, biased, p].map(|x| x.convert(dtype)))
    }
}

/// Query `i` sees key `j` where `j <= i + offset`; offset is a number, or one per batch element
/// `[B]`.
pub(super) fn causal<'b>(
    c: &Call<'_, 'b>,
    [queries, keys]: [usize; 2],
    offset: Expr<'b>,
) -> Result<Expr<'b>, Fault> {
    let each = sizes(offset)?.first().copied();
    let shape = Shape::from([each.unwrap_or(1), 1, queries, keys]);
    let dims: &[usize] = if each.is_some() { &[0] } else { &[] };
    let last = c.b.iota(DType::I64, shape.clone(), 2) + offset.broadcast_in(&shape, dims);
    Ok(c.b.iota(DType::I64, shape, 3).compare(Compare::Le, last))
}

/// The default domain's Attention.
pub(super) fn attention<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (mut q, mut k, mut v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let flat = sizes(q)?.len() == 3;
    let (q_heads, kv_heads) = (c.int_or("q_num_heads", 0), c.int_or("kv_num_heads", 0));
    if flat {
        q = heads(q, positive(q_heads, "a number of query heads")?)?;
        let shared = positive(kv_heads, "a number of key heads")?;
        (k, v) = (heads(k, shared)?, heads(v, shared)?);
    }
    let past = c.maybe(4)?;
    let past_length =
        past.map_or(Ok(0), |p| Ok::<_, Fault>(sizes(p)?.get(2).copied().unwrap_or(0)))?;
    (k, v) = (cached(past, k), cached(c.maybe(5)?, v));
    let [_, _, queries, width] = exactly(q, "q")?;
    let [batch, _, keys, _] = exactly(k, "k")?;
    let scale = finite(match c.attribute("scale") {
        Some(a) => f64::from(a.f()),
        None => 1.0 / (width.max(1) as f64).sqrt(),
    })?;
    let (cap, is_causal) = (c.float_or("softcap", 0.0), c.flag("is_causal", 0));
    let mode = c.int_or("qk_matmul_output_mode", 0);
    c.ignore(&["softmax_precision"]);
    let (left, right) = (c.int_or("left_window_size", -1), c.int_or("right_window_size", -1));
    let lengths = c.maybe(6)?;
    let windowed = left >= 0 || right >= 0;
    let aligned = !is_causal || queries + past_length == keys;
    let plain = !c.has(3) && lengths.is_none() && !windowed && cap == 0.0 && !c.wants(3) && aligned;
    let results = if plain && q.dtype().is_arithmetic_float() {
        let mask = if is_causal { Mask::Causal } else { Mask::Full };
        let [y, _] = q.attention(k, v, Attention { scale: Some(scale), mask, ..Attention::FULL });
        [y, y, y, y, y]
    } else {
        let number = |n: i64| super::conv::integer(c, n);
        let offset = match lengths {
            Some(lengths) => lengths.convert(DType::I64) - number(queries as i64),
            None => number(past_length as i64),
        };
        let mut visible: Option<Expr<'b>> = None;
        let mut and = |part: Expr<'b>| {
            visible = Some(visible.map_or(part, |all| all.binary(Binary::And, part)));
        };
        if is_causal {
            and(causal(c, [queries, keys], offset)?);
        }
        if right >= 0 {
            and(causal(c, [queries, keys], offset + number(right))?);
        }
        if left >= 0 {
            and(causal(c, [queries, keys], offset - number(left.saturating_add(1)))?
                .unary(overdrive_ir::Unary::Not));
        }
        if let Some(lengths) = lengths {
            let shape = Shape::from([batch, 1, 1, keys]);
            let length = lengths.convert(DType::I64).broadcast_in(&shape, &[0]);
            and(c.b.iota(DType::I64, shape, 3).compare(Compare::Lt, length));
        }
        let mut bias = None;
        if let Some(mask) = c.maybe(3)? {
            let mask = padded(mask, keys)?;
            if mask.dtype() == DType::Bool { and(mask) } else { bias = Some(mask) }
        }
        WrittenOut { scale, cap, bias, visible }.apply([q, k, v])?
    };
    let [y, raw, capped, biased, p] = results;
    let y = if flat { merged(y)? } else { y };
    let scores = match mode {
        0 if cap == 0.0 => raw,
        0 if c.opset >= 24 => capped,
        0 => raw,
        1 => capped,
        2 => biased,
        3 => p,
        other => return Err(invalid("qk_matmul_output_mode 0 to 3", other.to_string())),
    };
    Ok([y, k, v, scores].map(ItemValue::from).to_vec())
}

/// A mask shorter than the keys hides the rest.
fn padded<'b>(mask: Expr<'b>, keys: usize) -> Result<Expr<'b>, Fault> {
    let shape = sizes(mask)?;
    match shape.last() {
        Some(&n) if n != 1 && n < keys => {
            let mut pads = vec![Pad::default(); shape.len()];
            pads[shape.len() - 1].high = (keys - n) as i64;
            let hidden = if mask.dtype() == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
            Ok(mask.pad(pads, hidden))
        }
        _ => Ok(mask),
    }
}

/// Rotates pairs of channels of `[B, H, T, D]` by angles `[B or 1, T, R/2]`, R of the D channels.
pub(super) fn rotated<'b>(
    x: Expr<'b>,
    [cos, sin]: [Expr<'b>; 2],
    interleaved: bool,
) -> Result<Expr<'b>, Fault> {
    let [batch, heads, steps, width] = exactly(x, "heads")?;
    let [_, _, half] = exactly(cos, "cosines")?;
    if 2 * half > width {
        return Err(invalid(format!("at most {} angles", width / 2), cos.ty().to_string()));
    }
    let shape = Shape::from([batch, heads, steps, half]);
    let angle = |a: Expr<'b>| a.widen().broadcast_in(&shape, &[0, 2, 3]);
    let (cos, sin) = (angle(cos), angle(sin));
    let wide = x.widen();
    let part = |start: usize, limit: usize, stride: usize| {
        let (start, limit) = (vec![0, 0, 0, start], vec![batch, heads, steps, limit]);
        x.builder().op1(Prim::Slice { start, limit, stride: vec![1, 1, 1, stride] }, &[wide])
    };
    let turned = if interleaved {
        let (a, b) = (part(0, 2 * half, 2), part(1.min(2 * half), 2 * half, 2));
        let column = |x: Expr<'b>| x.reshape([batch, heads, steps, half, 1]);
        let [real, imaginary] = [a * cos - b * sin, a * sin + b * cos].map(column);
        x.builder().concat(&[real, imaginary], 4).reshape([batch, heads, steps, 2 * half])
    } else {
        let (a, b) = (part(0, half, 1), part(half, 2 * half, 1));
        x.builder().concat(&[a * cos - b * sin, a * sin + b * cos], 3)
    };
    let whole = if 2 * half == width {
        turned
    } else {
        x.builder().concat(&[turned, part(2 * half, width, 1)], 3)
    };
    sizes(whole)?;
    Ok(whole.convert(x.dtype()))
}

/// Rows of an angle table `[max, R/2]` at positions `[B, T]`, or at `start, start + 1, ...` of each
/// batch element.
pub(super) fn angles<'b>(
    table: Expr<'b>,
    positions: Expr<'b>,
    [batch, steps]: [usize; 2],
) -> Result<Expr<'b>, Fault> {
    let positions = match sizes(positions)?[..] {
        [b, t] if [b, t] == [batch, steps] => positions,
        [] | [1] => {
            let start = positions.reshape(Shape::default()).convert(DType::I64);
            let shape = Shape::from([batch, steps]);
            table.builder().iota(DType::I64, shape.clone(), 1) + start.broadcast_in(&shape, &[])
        }
        _ => {
            return Err(invalid(
                format!("positions of [{batch}, {steps}]"),
                positions.ty().to_string(),
            ));
        }
    };
    take(table, positions, 0)
}

/// The default domain's RotaryEmbedding: x, cos, sin, positions.
pub(super) fn rotary<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    embed(c, [1, 2, 3])
}

/// com.microsoft: x, positions, cos, sin.
pub(super) fn rotary_microsoft<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    c.ignore(&["is_packed_batching", "scale"]);
    embed(c, [2, 3, 1])
}

fn embed<'b>(c: &Call<'_, 'b>, [cos, sin, positions]: [usize; 3]) -> Outcome<'b> {
    let (x, count) = (c.x(0)?, c.int_or("num_heads", 0));
    let shape = sizes(x)?;
    let partial = c.int_or("rotary_embedding_dim", 0);
    let interleaved = c.flag("interleaved", 0);
    let flat = shape.len() == 3;
    let apart = match (flat, count) {
        (false, _) => x,
        // Without a count, the table says how wide a head is.
        (true, 0) => {
            let half = sizes(c.x(cos)?)?.last().copied().unwrap_or(0).max(1);
            if partial != 0 {
                return Err(invalid("num_heads beside rotary_embedding_dim", "none"));
            }
            heads(x, (shape[2] / (2 * half)).max(1))?
        }
        (true, count) => heads(x, positive(count, "a number of heads")?)?,
    };
    let [batch, _, steps, _] = exactly(apart, "heads")?;
    let table = |i: usize| match c.maybe(positions)? {
        Some(at) => angles(c.x(i)?, at, [batch, steps]),
        None => c.x(i),
    };
    let y = rotated(apart, [table(cos)?, table(sin)?], interleaved)?;
    one(if flat { merged(y)? } else { y })
}
