//! In blocks: collectives cut and join along the first axis, where parts are whole blocks of bytes.
//!
//! Transports move bytes and fold elements; they know no axes. A collective along another axis
//! becomes one over a new first axis, of one entry for each rank. It is between transposes, which
//! fuse with their neighbours or are views. One rank needs no collective. Invariant: afterwards
//! every collective has more than one rank and axis 0.

use overdrive_ir::{Expr, Graph, GraphError, Prim};

/// Brings the axes of collectives to the front.
pub(crate) fn in_blocks(graph: &Graph) -> Result<Graph, GraphError> {
    graph.rewrite(&mut |b, node, operands| {
        let prim = node.op.prim()?;
        let ranks = prim.channel()?.ranks();
        let x = operands[0];
        if ranks == 1 {
            let kept = !matches!(prim, Prim::Permute { pairs, .. } if pairs.is_empty());
            return Some(vec![if kept { x } else { b.full(x.dtype(), x.shape(), 0.0) }]);
        }
        let result = match prim {
            Prim::AllGather { axis, channel } if *axis > 0 => {
                let gather = Prim::AllGather { axis: 0, channel: channel.clone() };
                joined(b.op1(gather, &[unit(x)]), *axis)
            }
            Prim::ReduceScatter { reducer, axis, channel } if *axis > 0 => {
                let (reducer, channel) = (*reducer, channel.clone());
                let scatter = Prim::ReduceScatter { reducer, axis: 0, channel };
                let part = b.op1(scatter, &[cut(x, *axis, ranks)]);
                part.reshape(part.sizes()[1..].to_vec())
            }
            Prim::AllToAll { split, concat, channel } if (*split, *concat) != (0, 0) => {
                let exchange = Prim::AllToAll { split: 0, concat: 0, channel: channel.clone() };
                joined(b.op1(exchange, &[cut(x, *split, ranks)]), *concat)
            }
            _ => return None,
        };
        Some(vec![result])
    })
}

/// `[1, ...]` of `[...]`.
fn unit(x: Expr<'_>) -> Expr<'_> {
    x.reshape([vec![1], x.sizes()].concat())
}

/// `[ranks, ...]`: the parts of an axis, one after another.
fn cut(x: Expr<'_>, axis: usize, ranks: usize) -> Expr<'_> {
    let mut sizes = x.sizes();
    sizes[axis] /= ranks;
    sizes.insert(axis, ranks);
    let order = [axis].into_iter().chain((0..sizes.len()).filter(|&dim| dim != axis));
    x.reshape(sizes).transpose(&order.collect::<Vec<_>>())
}

/// Parts `[ranks, ...]` joined along an axis of theirs.
fn joined(parts: Expr<'_>, axis: usize) -> Expr<'_> {
    let mut order: Vec<usize> = (1..parts.rank()).collect();
    order.insert(axis, 0);
    let mut sizes = parts.sizes();
    let ranks = sizes.remove(0);
    sizes[axis] *= ranks;
    parts.transpose(&order).reshape(sizes)
}
