//! Gradients of collectives, for the sum over ranks of each rank's loss: every cotangent returns to
//! the rank it came from. Each gradient gets a channel of its own, since it issues beside the
//! collective that it differentiates.

use super::undifferentiable;
use crate::{Channel, Compare, Expr, Gradient, Prim, Reducer};

pub(super) fn grad<'b>(prim: &Prim, g: &Gradient<'b, '_>, dy: Expr<'b>) -> Option<Expr<'b>> {
    let (x, y) = (g.inputs[0], g.outputs[0]);
    let group = &prim.channel().expect("collectives have a channel").group;
    let fresh = || Channel { id: g.builder.channel(), group: group.clone() };
    let sum = |value: Expr<'b>| {
        g.builder.op1(Prim::AllReduce { reducer: Reducer::Sum, channel: fresh() }, &[value])
    };
    match prim {
        Prim::AllReduce { reducer: Reducer::Sum, .. } => Some(sum(dy)),
        Prim::AllReduce { reducer: Reducer::Max | Reducer::Min, .. } => {
            let won = x.compare(Compare::Eq, y);
            let share = sum(dy) / sum(won.convert(dy.dtype()));
            Some(won.select(share, dy.constant(0.0)))
        }
        Prim::AllGather { axis, .. } => {
            let part = Prim::ReduceScatter { reducer: Reducer::Sum, axis: *axis, channel: fresh() };
            Some(g.builder.op1(part, &[dy]))
        }
        Prim::ReduceScatter { reducer: Reducer::Sum, axis, .. } => {
            Some(g.builder.op1(Prim::AllGather { axis: *axis, channel: fresh() }, &[dy]))
        }
        Prim::AllToAll { split, concat, .. } => {
            let back = Prim::AllToAll { split: *concat, concat: *split, channel: fresh() };
            Some(g.builder.op1(back, &[dy]))
        }
        Prim::Permute { pairs, .. } => {
            let pairs = pairs.iter().map(|&(source, target)| (target, source)).collect();
            Some(g.builder.op1(Prim::Permute { pairs, channel: fresh() }, &[dy]))
        }
        _ => {
            let remedy = "reduce with sum, or gather first and fold locally";
            undifferentiable(g, &prim.name(), "the gradient of this fold over ranks", remedy);
            None
        }
    }
}
