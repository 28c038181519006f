//! `select(isnan(weights), 0, weights)`, by which exporters give rows that see no key 0.

use overdrive_ir::{Compare, Graph, Node, Prim, Value};

/// The test, what takes the place of a NaN, and the weights, where a node is such a guard.
pub(crate) fn nan_guard(graph: &Graph, node: &Node) -> Option<[Value; 3]> {
    let (Some(Prim::Select), &[test, other, weights]) = (node.op.prim(), &node.operands[..]) else {
        return None;
    };
    let compared = graph.producer(test)?;
    let is_nan = matches!(compared.op.prim(), Some(Prim::Compare { kind: Compare::Ne }))
        && compared.operands.iter().all(|v| *v == weights);
    is_nan.then_some([test, other, weights])
}
