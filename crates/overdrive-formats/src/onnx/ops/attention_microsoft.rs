//! Attention as com.microsoft has it: q, k and v apart, packed, or still to be projected, with
//! caches and masks of keys.
//!
//! A mask hides by -∞ here and by a large negative number there, which is the same wherever a query
//! sees a key.

use super::attention::{WrittenOut, angles, cached, causal, finite, heads, merged, rotated};
use super::matmul::dot;
use crate::onnx::axes::{common, exactly, positive, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::ItemValue;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{Binary, Compare, DType, Expr, Shape, Unary};

/// com.microsoft: q, k, v `[B, T, H D]`, optional bias, key mask, additive bias and cache.
pub(super) fn multi_head<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let count = positive(c.int_or("num_heads", 0), "a number of heads")?;
    c.ignore(&["mask_filter_value"]);
    let (mut q, mut k, mut v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let are_heads = sizes(k)?.len() == 4;
    if let Some(bias) = c.maybe(3)?.filter(|_| are_heads) {
        // Keys and values that come as heads are another layer's, and have their bias.
        q = q + bias.slice_axis(0, 0, sizes(q)?.last().copied().unwrap_or(0));
    } else if let Some(bias) = c.maybe(3)? {
        let widths = [sizes(q)?, sizes(k)?, sizes(v)?].map(|s| s.last().copied().unwrap_or(0));
        let part =
            |i: usize| bias.slice_axis(0, widths[..i].iter().sum(), widths[..=i].iter().sum());
        (q, k, v) = (q + part(0), k + part(1), v + part(2));
    }
    let q = heads(q, count)?;
    let apart = |x: Expr<'b>| if are_heads { Ok(x) } else { heads(x, count) };
    let (k, v) = (cached(c.maybe(6)?, apart(k)?), cached(c.maybe(7)?, apart(v)?));
    let [batch, _, queries, width] = exactly(q, "q")?;
    let [_, _, keys, _] = exactly(k, "k")?;
    let scale = finite(match c.float_or("scale", 0.0) {
        0.0 => 1.0 / (width.max(1) as f64).sqrt(),
        scale => scale,
    })?;
    let mask = c.maybe(4)?.map(|mask| key_mask(mask, [batch, queries, keys])).transpose()?;
    let past = c
        .maybe(6)?
        .map_or(Ok(0), |past| exactly::<4>(past, "a cache").map(|[_, _, past, _]| past))?;
    let y = attend(c, [q, k, v], Seen { scale, past, mask, bias: c.maybe(5)? })?;
    Ok([merged(y)?, k, v].map(ItemValue::from).to_vec())
}

/// Masks and bias of a query in addition to `unidirectional`.
struct Seen<'b> {
    scale: f64,
    /// Keys of the cache, which every query sees.
    past: usize,
    /// Broadcasts to the scores.
    mask: Option<Expr<'b>>,
    /// Added to the scores.
    bias: Option<Expr<'b>>,
}

fn attend<'b>(
    c: &Call<'_, 'b>,
    [q, k, v]: [Expr<'b>; 3],
    seen: Seen<'b>,
) -> Result<Expr<'b>, Fault> {
    let Seen { scale, past, mask, bias } = seen;
    let directed = c.flag("unidirectional", 0);
    let [_, _, queries, _] = exactly(q, "q")?;
    let [_, _, keys, _] = exactly(k, "k")?;
    if directed && past + queries != keys {
        // ONNX Runtime's kernel hides keys from all queries but the last there.
        return Err(unsupported(
            "unidirectional with other keys than the cache's and one for each query",
        ));
    }
    if mask.is_none() && bias.is_none() {
        let mask = if directed { Mask::Causal } else { Mask::Full };
        return Ok(q.attention(k, v, Attention { scale: Some(scale), mask, ..Attention::FULL })[0]);
    }
    let visible = if directed {
        let before = super::conv::integer(c, past as i64);
        let causal = causal(c, [queries, keys], before)?;
        Some(match mask {
            Some(mask) => {
                let shape = Shape::from(common(&sizes(mask)?, &sizes(causal)?)?);
                mask.broadcast_to(&shape).binary(Binary::And, causal.broadcast_to(&shape))
            }
            None => causal,
        })
    } else {
        mask
    };
    Ok(WrittenOut { scale, cap: 0.0, bias, visible }.apply([q, k, v])?[0])
}

/// Whether a mask of 0 and 1, or lengths of key sequences `[B]`, lets each key be seen.
fn key_mask<'b>(mask: Expr<'b>, [batch, queries, keys]: [usize; 3]) -> Result<Expr<'b>, Fault> {
    let nonzero = |mask: Expr<'b>| mask.compare(Compare::Ne, mask.constant(0.0));
    match sizes(mask)?[..] {
        [b, k] if [b, k] == [batch, keys] => Ok(nonzero(mask).reshape([batch, 1, 1, keys])),
        [b, q, k] if [b, q, k] == [batch, queries, keys] => {
            Ok(nonzero(mask).reshape([batch, 1, queries, keys]))
        }
        [b] if b == batch => {
            let shape = Shape::from([batch, 1, 1, keys]);
            let lengths = mask.convert(DType::I64).broadcast_in(&shape, &[0]);
            Ok(mask.builder().iota(DType::I64, shape, 3).compare(Compare::Lt, lengths))
        }
        // Ends, then starts.
        [both] if both == 2 * batch => {
            let shape = Shape::from([batch, 1, 1, keys]);
            let place = mask.builder().iota(DType::I64, shape.clone(), 3);
            let part = |from| {
                mask.slice_axis(0, from, from + batch)
                    .convert(DType::I64)
                    .broadcast_in(&shape, &[0])
            };
            let from = place.compare(Compare::Ge, part(batch));
            Ok(place.compare(Compare::Lt, part(0)).binary(Binary::And, from))
        }
        _ => Err(unsupported(format!("a key mask of {}", mask.ty()))),
    }
}

/// com.microsoft: x `[B, T, K]` times weights `[K, (2 D + E) H]` for q, k and v, optional bias, key
/// mask, cache `[2, B, H, P, D]` of keys and values, and additive bias.
pub(super) fn projected<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let count = positive(c.int_or("num_heads", 0), "a number of heads")?;
    c.ignore(&["mask_filter_value", "past_present_share_buffer"]);
    if c.flag("do_rotary", 0) || c.flag("past_present_share_buffer", 0) {
        return Err(unsupported("rotary positions inside, or a cache that is written in place"));
    }
    let x = c.x(0)?;
    let packed = dot(x, c.x(1)?, &[], &[(2, 0)], x.dtype());
    let packed = c.maybe(2)?.map_or(packed, |bias| packed + bias);
    let [batch, steps, all] = exactly(packed, "q, k and v")?;
    let widths = match c.list("qkv_hidden_sizes") {
        None => vec![all / 3; 3],
        Some(widths) => {
            widths.into_iter().map(|w| positive(w, "a width")).collect::<Result<Vec<_>, _>>()?
        }
    };
    if widths.len() != 3
        || widths.iter().try_fold(0usize, |sum, w| sum.checked_add(*w)) != Some(all)
    {
        return Err(invalid(
            format!("widths of q, k and v that add up to {all}"),
            format!("{widths:?}"),
        ));
    }
    let part = |i: usize| {
        let from: usize = widths[..i].iter().sum();
        heads(packed.slice_axis(2, from, from + widths[i]), count)
    };
    let past = match c.maybe(4)? {
        None => None,
        Some(past) => {
            let [2, b, h, p, d] = exactly(past, "a cache")? else {
                return Err(invalid("a cache of keys and values", past.ty().to_string()));
            };
            Some(([0, 1].map(|i| past.slice_axis(0, i, i + 1).reshape([b, h, p, d])), p))
        }
    };
    let cache = |i: usize| past.map(|(both, _)| both[i]);
    let (q, k, v) = (part(0)?, cached(cache(0), part(1)?), cached(cache(1), part(2)?));
    let [_, _, _, width] = exactly(q, "q")?;
    let [_, _, keys, _] = exactly(k, "k")?;
    let scale = finite(match c.float_or("scale", 0.0) {
        0.0 => 1.0 / (width.max(1) as f64).sqrt(),
        scale => scale,
    })?;
    let mask = c.maybe(3)?.map(|mask| key_mask(mask, [batch, steps, keys])).transpose()?;
    let seen = Seen { scale, past: past.map_or(0, |(_, p)| p), mask, bias: c.maybe(5)? };
    let y = merged(attend(c, [q, k, v], seen)?)?;
    if !c.wants(1) {
        return one(y);
    }
    let alone = |x: Expr<'b>| Ok::<_, Fault>(x.reshape([&[1][..], &sizes(x)?].concat()));
    let present = c.b.concat(&[alone(k)?, alone(v)?], 0);
    Ok([y, present].map(ItemValue::from).to_vec())
}

/// com.microsoft: q, k, v with a cache that is filled up to known lengths, rotary positions inside.
pub(super) fn group_query<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let count = positive(c.int_or("num_heads", 0), "a number of heads")?;
    let shared = positive(c.int_or("kv_num_heads", 0), "a number of key heads")?;
    let others = [(9, "position_ids"), (10, "attention_bias"), (11, "head_sink")];
    if let Some((_, name)) = others.into_iter().find(|(index, _)| c.has(*index)) {
        return Err(unsupported(format!("the input `{name}`")));
    }
    let (q, k, v) = match (c.maybe(1)?, c.maybe(2)?) {
        (Some(k), Some(v)) => (c.x(0)?, k, v),
        _ => {
            let packed = c.x(0)?;
            let width = sizes(packed)?.last().copied().unwrap_or(0) / (count + 2 * shared);
            let at = |from: usize, to: usize| packed.slice_axis(2, from * width, to * width);
            exactly::<3>(packed, "packed q, k, v")?;
            (at(0, count), at(count, count + shared), at(count + shared, count + 2 * shared))
        }
    };
    let (mut q, mut k, v) = (heads(q, count)?, heads(k, shared)?, heads(v, shared)?);
    let [batch, _, steps, width] = exactly(q, "q")?;
    let past = c.maybe(3)?;
    let past_length =
        past.map_or(Ok(0), |p| Ok::<_, Fault>(sizes(p)?.get(2).copied().unwrap_or(0)))?;
    if c.flag("do_rotary", 0) {
        let interleaved = c.flag("rotary_interleaved", 0);
        let start = super::conv::integer(c, past_length as i64);
        let table = |i: usize| angles(c.x(i)?, start, [batch, steps]);
        let angles = [table(7)?, table(8)?];
        (q, k) = (rotated(q, angles, interleaved)?, rotated(k, angles, interleaved)?);
    }
    let (k, v) = (cached(past, k), cached(c.maybe(4)?, v));
    let [_, _, keys, _] = exactly(k, "k")?;
    let scale = finite(match c.float_or("scale", 0.0) {
        0.0 => 1.0 / (width.max(1) as f64).sqrt(),
        scale => scale,
    })?;
    let (cap, window) = (c.float_or("softcap", 0.0), c.int_or("local_window_size", -1));
    c.ignore(&["smooth_softmax", "rotary_interleaved"]);
    // Keys past each sequence's length are padding; the last query stands at that length.
    let last = c.x(5)?.convert(DType::I64).reshape([batch]);
    let offset = last - super::conv::integer(c, steps as i64 - 1);
    let mut visible = causal(c, [steps, keys], offset)?;
    if window >= 0 {
        let behind = causal(c, [steps, keys], offset - super::conv::integer(c, window))?;
        visible = visible.binary(Binary::And, behind.unary(Unary::Not));
    }
    // One more in the denominator of the softmax is a key of zeros, which all see, with a value of
    // zeros.
    let seen = if c.flag("smooth_softmax", 0) {
        let zeros = |x: Expr<'b>| {
            let key = x.slice_axis(2, 0, 1);
            c.b.concat(&[x, key.constant(0.0).broadcast_to(&key.shape())], 2)
        };
        let column = visible.slice_axis(3, 0, 1);
        let always = column.binary(Binary::Or, column.unary(Unary::Not));
        visible = c.b.concat(&[visible, always], 3);
        [q, zeros(k), zeros(v)]
    } else {
        [q, k, v]
    };
    let out = WrittenOut { scale, cap, bias: None, visible: Some(visible) };
    Ok([merged(out.apply(seen)?[0])?, k, v].map(ItemValue::from).to_vec())
}
