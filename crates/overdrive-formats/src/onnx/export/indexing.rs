//! Primitives whose positions are data. Positions are clamped as ours are, which ONNX leaves
//! undefined.

use super::signature::Signature;
use super::writer::{Unsaid, Writer, int, text};
use overdrive_ir::{DType, Reducer, Shape, Tensor};

/// Positions as i64, clamped to `0..=last` (one bound per column).
fn clamped(w: &mut Writer, x: &str, last: &[usize]) -> Result<String, Unsaid> {
    let wide = w.cast(x, DType::I64)?;
    let zero = w.number(DType::I64, 0.0)?;
    let above = w.one("Max", &[&wide, &zero], vec![]);
    let bounds = w.sizes(last);
    Ok(w.one("Min", &[&above, &bounds], vec![]))
}

/// The indexed axes in front, the others behind.
fn fronted(rank: usize, axes: &[usize]) -> Vec<usize> {
    axes.iter().copied().chain((0..rank).filter(|a| !axes.contains(a))).collect()
}

fn bounds(sizes: &[usize], axes: &[usize]) -> Vec<usize> {
    axes.iter().map(|&a| sizes[a].saturating_sub(1)).collect()
}

pub(super) fn gather(
    w: &mut Writer,
    [x, indices]: [&str; 2],
    axes: &[usize],
    types: &Signature,
) -> Result<String, Unsaid> {
    let sizes = types.sizes(0);
    let positions = clamped(w, indices, &bounds(&sizes, axes))?;
    let turned = w.transpose(x, &fronted(sizes.len(), axes));
    if axes.len() != 1 {
        return Ok(w.one("GatherND", &[&turned, &positions], vec![int("batch_dims", 0)]));
    }
    let mut column = types.sizes(1);
    column.pop();
    let flat = w.reshape(&positions, &column);
    Ok(w.one("Gather", &[&turned, &flat], vec![int("axis", 0)]))
}

pub(super) fn scatter(
    w: &mut Writer,
    [x, indices, updates]: [&str; 3],
    (axes, reducer): (&[usize], Option<Reducer>),
    types: &Signature,
) -> Result<String, Unsaid> {
    let sizes = types.sizes(0);
    let reduction = match reducer {
        None => "none",
        Some(Reducer::Sum) => "add",
        Some(Reducer::Prod) => "mul",
        Some(Reducer::Max) => "max",
        Some(Reducer::Min) => "min",
        Some(other) => return Err(Unsaid(format!("no scatter by {other:?}"))),
    };
    let positions = clamped(w, indices, &bounds(&sizes, axes))?;
    let perm = fronted(sizes.len(), axes);
    let turned = w.transpose(x, &perm);
    let y = w.one("ScatterND", &[&turned, &positions, updates], vec![text("reduction", reduction)]);
    let back: Vec<usize> =
        (0..perm.len()).map(|a| perm.iter().position(|&p| p == a).unwrap_or(a)).collect();
    Ok(w.transpose(&y, &back))
}

/// Starts that leave room for a block of these sizes.
fn starts(w: &mut Writer, x: &str, sizes: &[usize], block: &[usize]) -> Result<String, Unsaid> {
    let room: Vec<usize> = sizes.iter().zip(block).map(|(n, b)| n.saturating_sub(*b)).collect();
    clamped(w, x, &room)
}

pub(super) fn dynamic_slice(
    w: &mut Writer,
    [x, at]: [&str; 2],
    block: &[usize],
    types: &Signature,
) -> Result<String, Unsaid> {
    let from = starts(w, at, &types.sizes(0), block)?;
    let extent = w.sizes(block);
    let to = w.one("Add", &[&from, &extent], vec![]);
    let axes = w.sizes(&(0..block.len()).collect::<Vec<usize>>());
    let steps = w.sizes(&vec![1; block.len()]);
    Ok(w.one("Slice", &[x, &from, &to, &axes, &steps], vec![]))
}

/// A scatter of every element to its place.
pub(super) fn dynamic_update(
    w: &mut Writer,
    [x, update, at]: [&str; 3],
    types: &Signature,
) -> Result<String, Unsaid> {
    let block = types.sizes(1);
    let from = starts(w, at, &types.sizes(0), &block)?;
    let strides = overdrive_ir::row_major(&block);
    let count: usize = block.iter().product();
    let places = (0..count)
        .flat_map(|i| block.iter().zip(&strides).map(move |(n, s)| (i / s % n.max(&1)) as i128));
    let shape = Shape::from([&block[..], &[block.len()]].concat());
    let grid = w.tensor(&Tensor::from_ints(DType::I64, shape, &places.collect::<Vec<i128>>()))?;
    let positions = w.one("Add", &[&grid, &from], vec![]);
    Ok(w.one("ScatterND", &[x, &positions, update], vec![text("reduction", "none")]))
}
