//! `Readers`: what reads each value of a graph.

use overdrive_ir::{Graph, NodeId, Value};

/// The nodes that read each value, and which are kept.
pub(crate) struct Readers {
    nodes: Vec<Vec<NodeId>>,
    is_kept: Vec<bool>,
}

impl Readers {
    pub(crate) fn of(graph: &Graph) -> Self {
        let count = graph.value_count();
        let (mut nodes, mut is_kept) = (vec![vec![]; count], vec![false; count]);
        for (id, node) in (0..).map(NodeId).zip(graph.nodes()) {
            node.operands.iter().for_each(|value| nodes[value.0 as usize].push(id));
        }
        let updates = graph.states().iter().filter_map(|state| state.update);
        let kept = graph.outputs().iter().map(|port| port.value).chain(updates);
        kept.for_each(|value| is_kept[value.0 as usize] = true);
        Self { nodes, is_kept }
    }

    /// The nodes that read a value, in order. One that reads it twice stands here twice.
    pub(crate) fn nodes(&self, value: Value) -> &[NodeId] {
        &self.nodes[value.0 as usize]
    }

    /// Whether a value is an output or the update of a state.
    pub(crate) fn is_kept(&self, value: Value) -> bool {
        self.is_kept[value.0 as usize]
    }
}
