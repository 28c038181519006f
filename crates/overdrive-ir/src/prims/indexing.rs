//! Primitives whose positions are data: gather, scatter, dynamic slices, sort.

use super::{check_axes, check_axis};
use crate::eval::{Data, for_each_index, scalar};
use crate::{Array, DType, Dim, Mismatch, Prim, Reducer, Shape, SortOrder, TensorType, Types};

fn check_indices(indices: &TensorType, axes: &[usize]) -> Result<(), Mismatch> {
    let last = indices.shape.0.last();
    if !indices.dtype.is_int() || last != Some(&Dim::Size(axes.len())) {
        let expected = format!(
            "integer indices whose last dimension is {} (one per indexed axis)",
            axes.len()
        );
        return Err(Mismatch::new(expected, indices.to_string()));
    }
    Ok(())
}

/// Type of `gather(operand, indices)`: also that of the updates of a scatter.
fn gathered(operand: &TensorType, indices: &TensorType, axes: &[usize]) -> TensorType {
    let batch = indices.shape.0[..indices.rank() - 1].iter().cloned();
    let window = (0..operand.rank())
        .filter(|axis| !axes.contains(axis))
        .map(|axis| operand.shape[axis].clone());
    operand.with_shape(Shape(batch.chain(window).collect()))
}

fn check_starts(starts: &TensorType, operand: &TensorType) -> Result<(), Mismatch> {
    if *starts != TensorType::new(DType::I64, [operand.rank()]) {
        return Err(Mismatch::new(format!("i64[{}] starts", operand.rank()), starts.to_string()));
    }
    Ok(())
}

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
    match prim {
        Prim::Gather { axes } => {
            let [operand, indices] = types.exactly()?;
            check_axes(axes, &operand.shape)?;
            check_indices(indices, axes)?;
            Ok(vec![gathered(operand, indices, axes)])
        }
        Prim::Scatter { axes, .. } => {
            let [operand, indices, updates] = types.exactly()?;
            check_axes(axes, &operand.shape)?;
            check_indices(indices, axes)?;
            let expected = gathered(operand, indices, axes);
            if *updates != expected {
                return Err(Mismatch::new(
                    format!("updates of type {expected}"),
                    updates.to_string(),
                ));
            }
            Ok(vec![operand.clone()])
        }
        Prim::DynamicSlice { sizes } => {
            let [operand, starts] = types.exactly()?;
            check_starts(starts, operand)?;
            let fits = sizes.len() == operand.rank()
                && sizes
                    .iter()
                    .zip(&operand.shape.0)
                    .all(|(s, d)| d.size().is_none_or(|d| *s <= d));
            if !fits {
                return Err(Mismatch::new(format!("sizes within {operand}"), format!("{sizes:?}")));
            }
            Ok(vec![operand.with_shape(sizes.clone())])
        }
        Prim::DynamicUpdateSlice => {
            let [operand, update, starts] = types.exactly()?;
            check_starts(starts, operand)?;
            let within = |(u, d): (&Dim, &Dim)| {
                u == d || matches!((u, d), (Dim::Size(u), Dim::Size(d)) if u <= d)
            };
            let fits = update.dtype == operand.dtype
                && update.rank() == operand.rank()
                && update.shape.0.iter().zip(&operand.shape.0).all(within);
            if !fits {
                return Err(Mismatch::new(
                    format!("an update within {operand}"),
                    update.to_string(),
                ));
            }
            Ok(vec![operand.clone()])
        }
        Prim::Sort { axis, .. } => {
            let [a] = types.exactly()?;
            check_axis(*axis, &a.shape)?;
            Ok(vec![a.clone(), a.with_dtype(DType::I32)])
        }
        _ => unreachable!("`{}` indexes nothing", prim.name()),
    }
}

/// For each (row of indices, window position): the operand position, in row-major order of
/// `gathered`.
fn positions(operand: &Array, indices: &Array, axes: &[usize]) -> Vec<usize> {
    let window_axes: Vec<usize> =
        (0..operand.shape.len()).filter(|axis| !axes.contains(axis)).collect();
    let window: Vec<usize> = window_axes.iter().map(|&axis| operand.shape[axis]).collect();
    let rows: usize = indices.shape[..indices.shape.len() - 1].iter().product();
    let mut result = Vec::new();
    let mut at = vec![0; operand.shape.len()];
    for row in 0..rows {
        for (i, &axis) in axes.iter().enumerate() {
            let last = operand.shape[axis] as i128 - 1;
            at[axis] = indices.ints()[row * axes.len() + i].min(last).max(0) as usize;
        }
        for_each_index(&window, |inner| {
            window_axes.iter().zip(inner).for_each(|(&axis, &i)| at[axis] = i);
            result.push(operand.position(&at));
        });
    }
    result
}

/// Row-major positions of a block of `sizes` at clamped `starts`.
fn block(operand: &Array, sizes: &[usize], starts: &Array) -> Vec<usize> {
    let first: Vec<usize> = (0..sizes.len())
        .map(|d| starts.ints()[d].clamp(0, (operand.shape[d] - sizes[d]) as i128) as usize)
        .collect();
    let mut result = Vec::with_capacity(sizes.iter().product());
    for_each_index(sizes, |index| {
        let at: Vec<usize> = index.iter().zip(&first).map(|(i, s)| i + s).collect();
        result.push(operand.position(&at));
    });
    result
}

/// Combines `updates[i]` into element `to[i]`.
fn combine(operand: &Array, to: &[usize], updates: &Array, reducer: Option<Reducer>) -> Array {
    let mut result = operand.clone();
    match (&mut result.data, &updates.data) {
        (Data::Float(out), Data::Float(new)) => {
            for (&position, &x) in to.iter().zip(new) {
                out[position] = reducer.map_or(x, |r| scalar::binary(r.binary(), out[position], x));
            }
        }
        (Data::Int(out), Data::Int(new)) => {
            for (&position, &x) in to.iter().zip(new) {
                let old = out[position];
                let sum =
                    reducer.map_or(x, |r| scalar::binary_int(r.binary(), operand.dtype, old, x));
                out[position] = sum;
            }
            return Array::int(operand.dtype, &operand.shape, std::mem::take(out));
        }
        _ => unreachable!("operand and updates have one type"),
    }
    result
}

pub(super) fn eval(prim: &Prim, args: &[Array]) -> Vec<Array> {
    let a = &args[0];
    match prim {
        Prim::Gather { axes } => {
            let shape = gathered(&a.ty(), &args[1].ty(), axes).sizes();
            if a.is_empty() {
                return vec![Array::from_f64(a.dtype, &shape, vec![0.0; shape.iter().product()])];
            }
            let from = positions(a, &args[1], axes);
            vec![a.rearrange(&shape, |i| from[i])]
        }
        Prim::Scatter { axes, reducer } => {
            if a.is_empty() {
                return vec![a.clone()];
            }
            vec![combine(a, &positions(a, &args[1], axes), &args[2], *reducer)]
        }
        Prim::DynamicSlice { sizes } => {
            let from = block(a, sizes, &args[1]);
            vec![a.rearrange(sizes, |i| from[i])]
        }
        Prim::DynamicUpdateSlice => {
            vec![combine(a, &block(a, &args[1].shape, &args[2]), &args[1], None)]
        }
        Prim::Sort { axis, order } => {
            let mut outer = a.shape.clone();
            let length = std::mem::replace(&mut outer[*axis], 1);
            let mut from = vec![0; a.len()];
            let mut ranks = vec![0i128; a.len()];
            for_each_index(&outer, |index| {
                let mut at = index.to_vec();
                let mut position = |i: usize| {
                    at[*axis] = i;
                    a.position(&at)
                };
                let line: Vec<usize> = (0..length).map(&mut position).collect();
                let mut sorted: Vec<usize> = (0..length).collect();
                sorted.sort_by(|&i, &j| {
                    let ascending = match &a.data {
                        Data::Float(v) => order_floats(v[line[i]], v[line[j]]),
                        Data::Int(v) => v[line[i]].cmp(&v[line[j]]),
                    };
                    if *order == SortOrder::Ascending { ascending } else { ascending.reverse() }
                });
                for (to, &i) in sorted.iter().enumerate() {
                    from[line[to]] = line[i];
                    ranks[line[to]] = i as i128;
                }
            });
            vec![a.rearrange(&a.shape, |i| from[i]), Array::int(DType::I32, &a.shape, ranks)]
        }
        _ => unreachable!("`{}` indexes nothing", prim.name()),
    }
}

/// Ascending with NaN last; -0 equals +0, so that the sort stays stable between them.
fn order_floats(x: f64, y: f64) -> std::cmp::Ordering {
    x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
}
