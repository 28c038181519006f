//! Gradients of the primitives, by family (the rules of docs/decisions/0001-primitives.md).
//!
//! A rule builds ordinary nodes from operands, results and cotangents, so that gradients of any
//! order exist. `None` means that the derivative is zero or that the operand is discrete. A value
//! whose derivative no rule knows is an error of the builder, never a silent zero.

mod collectives;
mod contraction;
mod control;
mod elementwise;
mod indexing;
mod movement;
mod reduction;

use crate::{Expr, Gradient, Mismatch, Prim};

/// Cotangents of the operands, one per operand.
pub(crate) fn grad<'b>(prim: &Prim, g: &Gradient<'b, '_>) -> Vec<Option<Expr<'b>>> {
    match prim {
        Prim::If => return control::branch(g),
        Prim::While { carried, max_trips } => return control::repeat(g, *carried, *max_trips),
        _ => {}
    }
    // Every other primitive has one float result, its first.
    let Some(dy) = g.cotangents[0] else { return vec![None; g.inputs.len()] };
    match prim {
        Prim::Unary { kind } => vec![elementwise::unary(*kind, g, dy)],
        Prim::Binary { kind } => elementwise::binary(*kind, g, dy),
        Prim::Select => elementwise::select(g, dy),
        Prim::Convert { .. } => vec![elementwise::convert(g, dy)],
        Prim::Broadcast { dims, .. } => vec![Some(movement::broadcast(g.inputs[0], dims, dy))],
        Prim::Reshape { .. } => vec![Some(dy.reshape(g.inputs[0].shape()))],
        Prim::Transpose { perm } => vec![Some(movement::transpose(perm, dy))],
        Prim::Slice { start, stride, .. } => {
            vec![Some(movement::slice(g.inputs[0], start, stride, dy))]
        }
        Prim::Pad { pads } => movement::pad(g, pads, dy),
        Prim::Concat { axis } => movement::concat(g, *axis, dy),
        Prim::Reduce { reducer, axes } => vec![reduction::reduce(*reducer, g, axes, dy)],
        Prim::ReduceWindow { reducer, windows } => {
            vec![reduction::window(*reducer, g, windows, dy)]
        }
        Prim::DotGeneral(dot) => contraction::dot(dot, g, dy),
        Prim::Convolution(conv) => contraction::convolution(conv, g, dy),
        Prim::Gather { axes } => indexing::gather(g, axes, dy),
        Prim::Scatter { axes, reducer } => indexing::scatter(g, axes, *reducer, dy),
        Prim::DynamicSlice { .. } => indexing::dynamic_slice(g, dy),
        Prim::DynamicUpdateSlice => indexing::dynamic_update_slice(g, dy),
        Prim::Sort { axis, .. } => vec![Some(indexing::sort(g, *axis, dy))],
        Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => {
            vec![collectives::grad(prim, g, dy)]
        }
        // A bitcast is not continuous anywhere; the others give no floats or take none.
        Prim::Constant { .. }
        | Prim::Compare { .. }
        | Prim::Bitcast { .. }
        | Prim::Iota { .. }
        | Prim::RandomBits { .. }
        | Prim::RankIndex { .. } => vec![None; g.inputs.len()],
        Prim::If | Prim::While { .. } => unreachable!("control flow returned above"),
    }
}

/// Records that `prim` has a derivative that no rule computes.
fn undifferentiable<'b>(g: &Gradient<'b, '_>, op: &str, found: &str, remedy: &str) {
    g.builder.fail(op, Mismatch::new("an op with a gradient", found).remedy(remedy));
}

/// Zeros of the type of `like`.
fn zeros<'b>(like: Expr<'b>) -> Expr<'b> {
    let ty = crate::gradients::cotangent_type(&like.ty());
    like.builder().full(ty.dtype, ty.shape, 0.0)
}
