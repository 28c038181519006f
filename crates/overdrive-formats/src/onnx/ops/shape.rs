//! Ops that move elements by shapes alone: reshape, transpose, split, tile, depth to space.

use crate::onnx::axes::{axes, axis, broadcast, extent, extents, positive, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use crate::onnx::item::ItemValue;
use overdrive_ir::{DType, Expr, Tensor};

fn product(shape: &[usize]) -> Result<usize, Fault> {
    let all = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    all.ok_or_else(|| invalid("a shape that can be addressed", format!("{shape:?}")))
}

/// 0 copies a dimension (unless `allowzero`), -1 takes what is left.
pub(super) fn reshape<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let asked = if c.has(1) { c.ints(1)? } else { c.list("shape").unwrap_or_default() };
    let keeps_zero = c.flag("allowzero", 0);
    let shape = c.extents(0)?;
    let mut free = None;
    let mut target = Vec::with_capacity(asked.len());
    for (i, &n) in asked.iter().enumerate() {
        target.push(match n {
            -1 if free.replace(i).is_none() => 1,
            0 if !keeps_zero => *shape
                .get(i)
                .ok_or_else(|| invalid("a dimension to copy", format!("{asked:?} of {shape:?}")))?,
            n => extent(n)?,
        });
    }
    if let Some(i) = free {
        let (have, rest) = (product(&shape)?, product(&target)?);
        target[i] = have.checked_div(rest).filter(|n| n * rest == have).unwrap_or(0);
    }
    if product(&shape)? != product(&target)? {
        return Err(invalid(format!("as many elements as {shape:?}"), format!("{asked:?}")));
    }
    if let ItemValue::Coded(codes) = c.value(0)?
        && let Some(same) = codes.reshaped(&target)
    {
        return one(ItemValue::Coded(same.into()));
    }
    one(c.x(0)?.reshape(target))
}

pub(super) fn flatten<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    // The axis may be one past the last.
    let first = c.int_or("axis", 1);
    let first = if first == shape.len() as i64 { shape.len() } else { axis(first, shape.len())? };
    one(x.reshape([product(&shape[..first])?, product(&shape[first..])?]))
}

pub(super) fn squeeze<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let given = if c.has(1) { c.maybe_ints(1)? } else { c.list("axes") };
    let gone = match given {
        Some(list) => axes(&list, shape.len())?,
        None => (0..shape.len()).filter(|&a| shape[a] == 1).collect(),
    };
    if let Some(a) = gone.iter().find(|&&a| shape[a] != 1) {
        return Err(invalid(format!("an axis {a} of size 1"), x.ty().to_string()));
    }
    one(x.reshape(
        (0..shape.len()).filter(|a| !gone.contains(a)).map(|a| shape[a]).collect::<Vec<_>>(),
    ))
}

pub(super) fn unsqueeze<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let mut shape = sizes(x)?;
    let list = if c.has(1) { c.ints(1)? } else { c.list("axes").unwrap_or_default() };
    for a in axes(&list, shape.len() + list.len())? {
        shape.insert(a, 1);
    }
    one(x.reshape(shape))
}

pub(super) fn transpose<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let rank = x.rank();
    let perm = match c.list("perm") {
        Some(perm) => perm.iter().map(|&p| axis(p, rank)).collect::<Result<Vec<usize>, Fault>>()?,
        None => (0..rank).rev().collect(),
    };
    if perm.len() != rank {
        return Err(invalid(format!("a permutation of {rank} axes"), format!("{perm:?}")));
    }
    one(x.transpose(&perm))
}

pub(super) fn concat<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let parts = c.rest(0)?;
    let first = parts.first().ok_or_else(|| invalid("an input", "none"))?;
    let along = axis(c.int_or("axis", 1), first.rank())?;
    one(c.b.concat(&parts, along))
}

pub(super) fn split<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let along = axis(c.int_or("axis", 0), shape.len())?;
    let given = if c.has(1) { c.maybe_ints(1)? } else { c.list("split") };
    let parts = match given {
        Some(list) => extents(&list)?,
        None => {
            let count = positive(
                c.int_or("num_outputs", c.node.output.len() as i64),
                "a number of outputs",
            )?;
            let each = shape[along].div_ceil(count);
            (0..count.min(1 << 16))
                .map(|i| shape[along].saturating_sub(i * each).min(each))
                .collect()
        }
    };
    c.ignore(&["num_outputs"]);
    if parts.iter().try_fold(0usize, |n, &p| n.checked_add(p)) != Some(shape[along]) {
        return Err(invalid(format!("parts of {} in all", shape[along]), format!("{parts:?}")));
    }
    let mut start = 0;
    let part = |n: &usize| {
        start += n;
        ItemValue::from(x.slice_axis(along, start - n, start))
    };
    Ok(parts.iter().map(part).collect())
}

pub(super) fn tile<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    // Opset 1 had one count and one axis as operands.
    let repeats = match c.opset {
        ..6 if c.count() == 3 => {
            let along = axis(c.number(2)? as i64, shape.len())?;
            let mut repeats = vec![1; shape.len()];
            repeats[along] = extent(c.number(1)? as i64)?;
            repeats
        }
        _ => extents(&c.ints(1)?)?,
    };
    if repeats.len() != shape.len() {
        return Err(invalid(format!("{} repeats", shape.len()), format!("{repeats:?}")));
    }
    // [2, 3] twice along the last axis is [2, 1, 3] broadcast to [2, 2, 3] and read as [2, 6].
    let (mut thin, mut thick, mut flat) = (vec![], vec![], vec![]);
    for (&n, &times) in shape.iter().zip(&repeats) {
        thin.extend([1, n]);
        thick.extend([times, n]);
        flat.push(product(&[times, n])?);
    }
    one(broadcast(x.reshape(thin), &thick).reshape(flat))
}

/// `[N, C b b, H, W]` to `[N, C, H b, W b]`.
pub(super) fn depth_to_space<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let [n, channels, h, w] = crate::onnx::axes::exactly(x, "x")?;
    let block = positive(c.int_or("blocksize", 0), "a block size")?;
    let deep = block.checked_mul(block).filter(|bb| channels % bb == 0);
    let deep = channels
        / deep.ok_or_else(|| invalid("channels that the block divides", x.ty().to_string()))?;
    one(match c.text_or("mode", "DCR").as_str() {
        "DCR" => x.reshape([n, block, block, deep, h, w]).transpose(&[0, 3, 4, 1, 5, 2]),
        "CRD" => x.reshape([n, deep, block, block, h, w]).transpose(&[0, 1, 4, 2, 5, 3]),
        other => return Err(invalid("mode DCR or CRD", other)),
    }
    .reshape([n, deep, h * block, w * block]))
}

pub(super) fn space_to_depth<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let [n, channels, h, w] = crate::onnx::axes::exactly(x, "x")?;
    let block = positive(c.int_or("blocksize", 0), "a block size")?;
    if h % block != 0 || w % block != 0 {
        return Err(invalid("a height and width that the block divides", x.ty().to_string()));
    }
    let (h, w) = (h / block, w / block);
    let blocks = x.reshape([n, channels, h, block, w, block]).transpose(&[0, 3, 5, 1, 2, 4]);
    one(match c.text_or("mode", "DCR").as_str() {
        "DCR" => blocks,
        "CRD" => x.reshape([n, channels, h, block, w, block]).transpose(&[0, 1, 3, 5, 2, 4]),
        other => return Err(invalid("mode DCR or CRD", other)),
    }
    .reshape([n, channels * block * block, h, w]))
}

/// The shape is known while the elements are not.
pub(super) fn shape<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let dims = sizes(c.x(0)?)?;
    let rank = dims.len() as i64;
    let wrap = |n: i64| (if n < 0 { n.saturating_add(rank) } else { n }).clamp(0, rank) as usize;
    let (start, end) = (wrap(c.int_or("start", 0)), wrap(c.int_or("end", rank)));
    let part: Vec<i128> = dims[start..end.max(start)].iter().map(|&n| n as i128).collect();
    one(Tensor::from_ints(DType::I64, [part.len()], &part))
}

pub(super) fn size<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let count = product(&sizes(c.x(0)?)?)?;
    one(Tensor::from_ints(DType::I64, overdrive_ir::Shape::default(), &[count as i128]))
}

/// Elements above (or below) a diagonal; the others are 0.
pub(super) fn trilu<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let rank = shape.len();
    if rank < 2 {
        return Err(invalid("x of [..., M, N]", x.ty().to_string()));
    }
    let k = if c.has(1) { c.integer(1)? } else { 0 }.clamp(-(1 << 40), 1 << 40);
    let matrix = [shape[rank - 2], shape[rank - 1]];
    let row = c.b.iota(DType::I64, matrix, 0);
    let shifted = row
        + c.b.constant(Tensor::from_ints(DType::I64, overdrive_ir::Shape::default(), &[k.into()]));
    let column = c.b.iota(DType::I64, matrix, 1);
    let kind =
        if c.flag("upper", 1) { overdrive_ir::Compare::Ge } else { overdrive_ir::Compare::Le };
    one(column.compare(kind, shifted).select(x, zero(x)))
}

/// A scalar zero (or false) of an expression's type.
pub(super) fn zero(x: Expr<'_>) -> Expr<'_> {
    x.constant(0.0)
}

/// Crops the middle or pads around it, axis by axis.
pub(super) fn center_crop_pad<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let targets = extents(&c.ints(1)?)?;
    let along: Vec<usize> = match c.list("axes") {
        Some(list) => list.iter().map(|&a| axis(a, shape.len())).collect::<Result<_, _>>()?,
        None => (0..shape.len()).collect(),
    };
    if along.len() != targets.len() {
        return Err(invalid(format!("{} sizes", along.len()), format!("{targets:?}")));
    }
    let mut pads = vec![overdrive_ir::Pad::default(); shape.len()];
    for (&a, &target) in along.iter().zip(&targets) {
        let (have, want) = (shape[a] as i64, target as i64);
        let more = want.saturating_sub(have);
        // Half of the difference before, rounded down; a crop keeps that rounding on its own side.
        let low = if more >= 0 { more / 2 } else { -((-more) / 2) };
        pads[a] = overdrive_ir::Pad { low, high: more - low, interior: 0 };
    }
    one(x.pad(pads, 0.0))
}
