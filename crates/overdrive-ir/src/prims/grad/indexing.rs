//! Gradients of primitives whose positions are data. The cotangent of an element is added at the
//! position that it was read from.

use super::{undifferentiable, zeros};
use crate::{Compare, DType, Expr, Gradient, Prim, Reducer};

fn scatter_into<'b>(
    target: Expr<'b>,
    indices: Expr<'b>,
    updates: Expr<'b>,
    axes: &[usize],
    reducer: Option<Reducer>,
) -> Expr<'b> {
    target
        .builder()
        .op1(Prim::Scatter { axes: axes.to_vec(), reducer }, &[target, indices, updates])
}

pub(super) fn gather<'b>(
    g: &Gradient<'b, '_>,
    axes: &[usize],
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    vec![Some(scatter_into(zeros(g.inputs[0]), g.inputs[1], dy, axes, Some(Reducer::Sum))), None]
}

pub(super) fn scatter<'b>(
    g: &Gradient<'b, '_>,
    axes: &[usize],
    reducer: Option<Reducer>,
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    let (x, indices, updates, y) = (g.inputs[0], g.inputs[1], g.inputs[2], g.outputs[0]);
    let read = dy.gather(indices, axes);
    let (dx, du) = match reducer {
        Some(Reducer::Sum) => (dy, read),
        None => {
            let dx = scatter_into(dy, indices, zeros(updates), axes, None);
            let last = last_writer(g, axes);
            (dx, last.select(read, dy.constant(0.0)))
        }
        Some(Reducer::Max | Reducer::Min) => {
            let (kept, took) =
                (x.compare(Compare::Eq, y), updates.compare(Compare::Eq, y.gather(indices, axes)));
            let ones = |won: Expr<'b>| won.convert(dy.dtype());
            let count = scatter_into(ones(kept), indices, ones(took), axes, Some(Reducer::Sum));
            let (share, zero) = (dy / count, dy.constant(0.0));
            (kept.select(share, zero), took.select(share.gather(indices, axes), zero))
        }
        Some(Reducer::Prod) => {
            let remedy = "write the product as exp of a scatter-add of logarithms";
            undifferentiable(g, "scatter", "the gradient of a scatter that multiplies", remedy);
            return vec![None; 3];
        }
        Some(Reducer::And | Reducer::Or) => return vec![None; 3],
    };
    vec![Some(dx), None, Some(du)]
}

/// If updates overwrite one place, the last one stays: each writes its number, and looks whether it
/// survived.
fn last_writer<'b>(g: &Gradient<'b, '_>, axes: &[usize]) -> Expr<'b> {
    let (x, indices, updates) = (g.inputs[0], g.inputs[1], g.inputs[2]);
    let rows: Vec<usize> = indices.sizes()[..indices.rank() - 1].to_vec();
    let dims: Vec<usize> = (0..rows.len()).collect();
    let count: usize = rows.iter().product();
    let number =
        g.builder.iota(DType::I64, [count], 0).reshape(rows).broadcast_in(&updates.shape(), &dims);
    let written =
        scatter_into(g.builder.full(DType::I64, x.shape(), 0.0), indices, number, axes, None);
    written.gather(indices, axes).compare(Compare::Eq, number)
}

pub(super) fn dynamic_slice<'b>(g: &Gradient<'b, '_>, dy: Expr<'b>) -> Vec<Option<Expr<'b>>> {
    vec![
        Some(g.builder.op1(Prim::DynamicUpdateSlice, &[zeros(g.inputs[0]), dy, g.inputs[1]])),
        None,
    ]
}

pub(super) fn dynamic_update_slice<'b>(
    g: &Gradient<'b, '_>,
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    let (update, starts) = (g.inputs[1], g.inputs[2]);
    let dx = g.builder.op1(Prim::DynamicUpdateSlice, &[dy, zeros(update), starts]);
    let du = g.builder.op1(Prim::DynamicSlice { sizes: update.sizes() }, &[dy, starts]);
    vec![Some(dx), Some(du), None]
}

/// Puts every cotangent back where its element came from. No two go to one place; the sum is chosen
/// because its own gradient is the simplest.
pub(super) fn sort<'b>(g: &Gradient<'b, '_>, axis: usize, dy: Expr<'b>) -> Expr<'b> {
    let (sizes, rank) = (dy.sizes(), dy.rank());
    let perm: Vec<usize> = (0..rank).filter(|&d| d != axis).chain([axis]).collect();
    let moved = dy.transpose(&perm);
    let length = sizes[axis];
    let lines: usize = perm[..rank - 1].iter().map(|&d| sizes[d]).product();
    let flat = [lines, length];
    let index = |value: Expr<'b>| value.reshape([lines, length, 1]);
    let from = index(g.outputs[1].transpose(&perm).convert(DType::I64));
    let line = index(g.builder.iota(DType::I64, flat, 0));
    let indices = g.builder.concat(&[line, from], 2);
    let target = g.builder.full(dy.dtype(), flat, 0.0);
    let placed = scatter_into(target, indices, moved.reshape(flat), &[0, 1], Some(Reducer::Sum));
    super::movement::transpose(&perm, placed.reshape(moved.shape()))
}
