//! Gradients of primitives that only move elements: each is moved back, and copies are summed.

use crate::{DType, Expr, Gradient, Pad, Tensor};

/// Sums over the dimensions that the broadcast made.
pub(super) fn broadcast<'b>(x: Expr<'b>, dims: &[usize], dy: Expr<'b>) -> Expr<'b> {
    let (from, to) = (x.sizes(), dy.sizes());
    let kept = |axis: &usize| dims.iter().zip(&from).any(|(d, &n)| d == axis && n == to[*axis]);
    let made: Vec<usize> = (0..to.len()).filter(|axis| !kept(axis)).collect();
    dy.sum(&made).reshape(x.shape())
}

pub(super) fn transpose<'b>(perm: &[usize], dy: Expr<'b>) -> Expr<'b> {
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| inverse[p] = i);
    dy.transpose(&inverse)
}

/// Extent of `n` elements, `step` apart.
pub(super) fn spread(n: usize, step: usize) -> i64 {
    if n == 0 { 0 } else { ((n - 1) * step + 1) as i64 }
}

/// Puts element `i` of each dimension of `dy` at position `start + i * stride` of zeros in the
/// shape of `x`. Elements that fall outside are dropped.
pub(super) fn place<'b>(x: Expr<'b>, start: &[i64], stride: &[usize], dy: Expr<'b>) -> Expr<'b> {
    let (to, from) = (x.sizes(), dy.sizes());
    let pad = |d: usize| {
        let high = to[d] as i64 - start[d] - spread(from[d], stride[d]);
        Pad { low: start[d], high, interior: stride[d] - 1 }
    };
    dy.pad((0..to.len()).map(pad).collect(), 0.0)
}

pub(super) fn slice<'b>(x: Expr<'b>, start: &[usize], stride: &[usize], dy: Expr<'b>) -> Expr<'b> {
    let start: Vec<i64> = start.iter().map(|&s| s as i64).collect();
    place(x, &start, stride, dy)
}

pub(super) fn pad<'b>(g: &Gradient<'b, '_>, pads: &[Pad], dy: Expr<'b>) -> Vec<Option<Expr<'b>>> {
    let x = g.inputs[0];
    let limit: Vec<usize> =
        pads.iter().zip(x.sizes()).map(|(pad, n)| spread(n, pad.interior + 1) as usize).collect();
    let edges =
        pads.iter().map(|pad| Pad { low: -pad.low, high: -pad.high, interior: 0 }).collect();
    let stride = pads.iter().map(|pad| pad.interior + 1).collect();
    let slice = crate::Prim::Slice { start: vec![0; pads.len()], limit, stride };
    let dx = g.builder.op1(slice, &[dy.pad(edges, 0.0)]);
    let operand = g.builder.full(DType::Bool, x.shape(), 0.0);
    let yes = g.builder.constant(Tensor::scalar(DType::Bool, 1.0));
    let outside = g.builder.op1(crate::Prim::Pad { pads: pads.to_vec() }, &[operand, yes]);
    let axes: Vec<usize> = (0..dy.rank()).collect();
    vec![Some(dx), Some(outside.select(dy, dy.constant(0.0)).sum(&axes))]
}

pub(super) fn concat<'b>(g: &Gradient<'b, '_>, axis: usize, dy: Expr<'b>) -> Vec<Option<Expr<'b>>> {
    let mut start = 0;
    let part = |x: &Expr<'b>| {
        let limit = start + x.size(axis);
        let dx = dy.slice_axis(axis, start, limit);
        start = limit;
        Some(dx)
    };
    g.inputs.iter().map(part).collect()
}
