//! Primitives that only move elements: broadcast, reshape, transpose, slice, pad, concat.

use super::{check_axis, known};
use crate::eval::for_each_index;
use crate::{Array, Dim, Mismatch, Pad, Prim, Shape, TensorType, Types};

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    match prim {
        Prim::Broadcast { shape, dims } => broadcast_type((shape, dims), types),
        Prim::Reshape { shape } => reshaped_type(shape, types),
        Prim::Transpose { perm } => transposed_type(perm, types),
        Prim::Slice { start, limit, stride } => slice_type([start, limit, stride], types),
        Prim::Pad { pads } => padded_type(pads, types),
        Prim::Concat { axis } => concatenated_type(*axis, types),
        _ => unreachable!("`{}` moves no elements", prim.name()),
    }
}

fn broadcast_type(
    (shape, dims): (&Shape, &[usize]),
    types: &Types<'_>,
) -> Result<TensorType, Mismatch> {
    let [a] = types.exactly()?;
    let increasing = dims.windows(2).all(|w| w[0] < w[1]) && dims.iter().all(|&d| d < shape.rank());
    let fits = dims.len() == a.rank()
        && increasing
        && dims.iter().zip(&a.shape.0).all(|(&d, from)| *from == Dim::Size(1) || *from == shape[d]);
    if !fits {
        let expected = format!("dimensions that are 1 or equal to those of {shape} at {dims:?}");
        let remedy = "align trailing dimensions, or insert dimensions of 1";
        return Err(Mismatch::new(expected, a.to_string()).remedy(remedy));
    }
    Ok(a.with_shape(shape.clone()))
}

fn reshaped_type(shape: &Shape, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let [a] = types.exactly()?;
    if a.shape.volume() != shape.volume() {
        let expected = format!("as many elements as {shape}");
        return Err(Mismatch::new(expected, a.to_string()));
    }
    Ok(a.with_shape(shape.clone()))
}

fn transposed_type(perm: &[usize], types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let [a] = types.exactly()?;
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted.len() != a.rank() || sorted.iter().enumerate().any(|(i, &p)| i != p) {
        let expected = format!("a permutation of the {} dimensions of {a}", a.rank());
        return Err(Mismatch::new(expected, format!("{perm:?}")));
    }
    Ok(a.with_shape(Shape(perm.iter().map(|&p| a.shape[p].clone()).collect())))
}

fn slice_type(
    [start, limit, stride]: [&[usize]; 3],
    types: &Types<'_>,
) -> Result<TensorType, Mismatch> {
    let [a] = types.exactly()?;
    let rank = a.rank();
    if [start.len(), limit.len(), stride.len()] != [rank; 3] {
        return Err(Mismatch::new(format!("{rank} starts, limits and strides"), a.to_string()));
    }
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        let size = known(&a.with_shape(vec![a.shape[axis].clone()]))?[0];
        let (s, l, step) = (start[axis], limit[axis], stride[axis]);
        if s > l || l > size || step == 0 {
            let expected = format!("0 <= start <= limit <= {size} and stride >= 1 on axis {axis}");
            return Err(Mismatch::new(expected, format!("{s}..{l} step {step}")));
        }
        dims.push((l - s).div_ceil(step));
    }
    Ok(a.with_shape(dims))
}

fn padded_type(pads: &[Pad], types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let [a, value] = types.exactly()?;
    if *value != TensorType::scalar(a.dtype) || pads.len() != a.rank() {
        let expected = format!("a scalar {} and {} pads", a.dtype, a.rank());
        return Err(Mismatch::new(expected, format!("{value} and {} pads", pads.len())));
    }
    let mut dims = Vec::with_capacity(pads.len());
    for (pad, dim) in pads.iter().zip(&a.shape.0) {
        if *pad == Pad::default() {
            dims.push(dim.clone());
            continue;
        }
        let size = known(&a.with_shape(vec![dim.clone()]))?[0];
        let padded = spread(size, pad).saturating_add(pad.low).saturating_add(pad.high);
        let negative = || Mismatch::new("pads that leave a size of at least 0", padded.to_string());
        dims.push(Dim::Size(usize::try_from(padded).map_err(|_| negative())?));
    }
    Ok(a.with_shape(dims))
}

fn concatenated_type(axis: usize, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let first = types.operands.first().ok_or_else(|| Mismatch::new("an operand", "none"))?;
    check_axis(axis, &first.shape)?;
    let mut total = 0usize;
    for ty in types.operands {
        let mut shape = ty.shape.clone();
        let alike = ty.rank() == first.rank() && {
            shape.0[axis] = first.shape[axis].clone();
            shape == first.shape && ty.dtype == first.dtype
        };
        if !alike {
            let expected = format!("types that equal {first} but for axis {axis}");
            return Err(Mismatch::new(expected, ty.to_string()));
        }
        total = total.saturating_add(known(&ty.with_shape(vec![ty.shape[axis].clone()]))?[0]);
    }
    let mut shape = first.shape.clone();
    shape.0[axis] = Dim::Size(total);
    Ok(first.with_shape(shape))
}

/// Extent after interior padding; saturates, so that absurd attributes become absurd types and no
/// overflow.
fn spread(size: usize, pad: &Pad) -> i64 {
    let spread = match size.checked_sub(1) {
        Some(gaps) => gaps.saturating_mul(pad.interior.saturating_add(1)).saturating_add(1),
        None => 0,
    };
    i64::try_from(spread).unwrap_or(i64::MAX)
}

pub(super) fn eval(prim: &Prim, args: &[Array]) -> Array {
    let a = &args[0];
    match prim {
        Prim::Broadcast { shape, dims } => {
            let shape = super::concrete(shape);
            pick(a, &shape, |index| {
                let at: Vec<usize> = dims
                    .iter()
                    .zip(&a.shape)
                    .map(|(&d, &n)| if n == 1 { 0 } else { index[d] })
                    .collect();
                a.position(&at)
            })
        }
        Prim::Reshape { shape } => a.reshaped(&super::concrete(shape)),
        Prim::Transpose { perm } => {
            let shape: Vec<usize> = perm.iter().map(|&p| a.shape[p]).collect();
            pick(a, &shape, |index| {
                let mut at = vec![0; perm.len()];
                perm.iter().zip(index).for_each(|(&p, &i)| at[p] = i);
                a.position(&at)
            })
        }
        Prim::Slice { start, limit, stride } => {
            let shape: Vec<usize> =
                (0..start.len()).map(|d| (limit[d] - start[d]).div_ceil(stride[d])).collect();
            pick(a, &shape, |index| {
                let at: Vec<usize> =
                    (0..index.len()).map(|d| start[d] + index[d] * stride[d]).collect();
                a.position(&at)
            })
        }
        Prim::Pad { pads } => {
            let shape: Vec<usize> = pads
                .iter()
                .zip(&a.shape)
                .map(|(pad, &n)| (spread(n, pad) + pad.low + pad.high) as usize)
                .collect();
            // Element `a.len()` of the joined array is the padding value.
            let joined = join(&[a.reshaped(&[a.len()]), args[1].reshaped(&[1])], 0);
            pick(&joined, &shape, |index| {
                let mut at = vec![0; pads.len()];
                for (d, pad) in pads.iter().enumerate() {
                    let position = index[d] as i64 - pad.low;
                    let step = pad.interior as i64 + 1;
                    if position < 0 || position % step != 0 || position / step >= a.shape[d] as i64
                    {
                        return a.len();
                    }
                    at[d] = (position / step) as usize;
                }
                a.position(&at)
            })
        }
        Prim::Concat { axis } => join(args, *axis),
        _ => unreachable!("`{}` moves no elements", prim.name()),
    }
}

/// The array of `shape` whose element at each index is element `source(index)` of `a`.
fn pick(a: &Array, shape: &[usize], mut source: impl FnMut(&[usize]) -> usize) -> Array {
    let mut sources = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |index| sources.push(source(index)));
    a.rearrange(shape, |i| sources[i])
}

/// Joins arrays along an axis.
pub(super) fn join(parts: &[Array], axis: usize) -> Array {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    let mut owners = Vec::new();
    for (part, array) in parts.iter().enumerate() {
        owners.extend((0..array.shape[axis]).map(|i| (part, i)));
    }
    let mut floats = Vec::new();
    let mut ints = Vec::new();
    for_each_index(&shape, |index| {
        let (part, i) = owners[index[axis]];
        let mut at = index.to_vec();
        at[axis] = i;
        let position = parts[part].position(&at);
        match &parts[part].data {
            crate::eval::Data::Float(v) => floats.push(v[position]),
            crate::eval::Data::Int(v) => ints.push(v[position]),
        }
    });
    let dtype = parts[0].dtype;
    if dtype.is_float() {
        Array::float(dtype, &shape, floats)
    } else {
        Array::int(dtype, &shape, ints)
    }
}
