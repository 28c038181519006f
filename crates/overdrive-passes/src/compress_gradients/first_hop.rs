//! `at_gradients`: the first exchange of each compressed sum, right behind its gradient.
//!
//! A plan starts a collective as soon as its operand is ready, but moves no other work. Codes that
//! are made where the optimizer stands would hold their exchange back until the backward is over.
//! Sums and second exchanges stay behind: the pass `bucket` moves these to where the first has
//! arrived.

use crate::rebuild::in_order;
use overdrive_ir::{Graph, GraphError, Node, Origin, Prim, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Moves collectives whose channel is `first_channel` or a later one, and all that they need beside
/// their gradient. One that needs another of them stays.
pub(super) fn at_gradients(
    graph: &Graph,
    gradients: &BTreeSet<Value>,
    first_channel: u64,
) -> Result<Graph, GraphError> {
    let nodes = graph.nodes();
    let is_ours = |node: &Node| {
        node.op.prim().and_then(Prim::channel).is_some_and(|channel| channel.id >= first_channel)
    };
    let mut moved = BTreeSet::new();
    let mut behind: BTreeMap<Value, BTreeSet<usize>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| is_ours(node)) {
        let (mut own, mut of) = (BTreeSet::from([at]), None);
        let mut open = node.operands.clone();
        while let Some(value) = open.pop() {
            if gradients.contains(&value) {
                of = Some(value);
            } else if let Origin::Node(id, _) = graph.origin(value)
                && own.insert(id.0 as usize)
            {
                open.extend(&graph.node(id).operands);
            }
        }
        let is_first = own.iter().filter(|&&at| is_ours(&nodes[at])).count() == 1;
        // A gradient that no node computes has no place to move to.
        let computed = of.filter(|&of| matches!(graph.origin(of), Origin::Node(..)));
        if let (true, Some(gradient)) = (is_first, computed) {
            moved.extend(own.iter().copied());
            behind.entry(gradient).or_default().append(&mut own);
        }
    }
    let mut order = vec![];
    for (at, node) in nodes.iter().enumerate().filter(|(at, _)| !moved.contains(at)) {
        order.push(at);
        order.extend(node.results.iter().filter_map(|v| behind.remove(v)).flatten());
    }
    in_order(graph, order.into_iter().map(|at| &nodes[at]))
}
