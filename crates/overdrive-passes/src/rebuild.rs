//! The one loop that passes share: copies a graph node by node, leaving out what nothing needs.
//!
//! Invariant: inputs, states, outputs and updates keep their names and order; only nodes change. A
//! pass therefore never has to clear up behind itself: the next one does not copy what became dead.

use crate::meeting_order::meets;
use overdrive_ir::{Builder, Expr, Graph, GraphError, Init, Node, StateDecl, TensorType, Value};
use std::collections::HashMap;

/// A node about to be copied.
pub(crate) struct NodeToCopy<'b, 'a> {
    /// The builder to build with.
    pub(crate) builder: &'b Builder,
    /// The node in the old graph.
    pub(crate) node: &'a Node,
    /// Its operands in the new graph.
    pub(crate) operands: Vec<Expr<'b>>,
    map: &'a [Option<Expr<'b>>],
}

impl<'b> NodeToCopy<'b, '_> {
    /// The new value of an earlier live value of the old graph.
    pub(crate) fn get(&self, value: Value) -> Expr<'b> {
        self.map[value.0 as usize].expect("live values are copied in order")
    }

    /// The node as it was, with these regions.
    pub(crate) fn keep(&self, regions: Vec<Graph>) -> Vec<Expr<'b>> {
        self.builder.node(self.node.op.clone(), &self.operands, regions)
    }
}

/// Gives the new results of a node.
pub(crate) type Each<'e> =
    dyn for<'b> FnMut(&NodeToCopy<'b, '_>) -> Result<Vec<Expr<'b>>, GraphError> + 'e;

/// Copies `graph` with the types of inputs and states changed by `retype` and the nodes by `each`,
/// which also decides about regions.
pub(crate) fn rebuild(
    graph: &Graph,
    retype: &dyn Fn(&TensorType) -> TensorType,
    each: &mut Each<'_>,
) -> Result<Graph, GraphError> {
    rebuild_states(graph, retype, &|state| retype(graph.ty(state.value)), each)
}

/// The same with the types of inputs and of states given apart.
pub(crate) fn rebuild_states(
    graph: &Graph,
    inputs: &dyn Fn(&TensorType) -> TensorType,
    states: &dyn Fn(&StateDecl) -> TensorType,
    each: &mut Each<'_>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    for port in graph.inputs() {
        map[port.value.0 as usize] = Some(b.input(&port.name, inputs(graph.ty(port.value))));
    }
    for state in graph.states() {
        let ty = states(state);
        let init = match &state.init {
            Init::Value(tensor) if tensor.ty().dtype != ty.dtype => {
                Init::Value(tensor.convert(ty.dtype))
            }
            other => other.clone(),
        };
        map[state.value.0 as usize] = Some(b.state_named(&state.name, ty, init));
    }
    let live = live(graph);
    for node in graph.nodes() {
        if !node.results.iter().any(|v| live[v.0 as usize]) {
            continue;
        }
        let known =
            |v: &Value| map[v.0 as usize].expect("operands of live nodes are live and come first");
        let operands = node.operands.iter().map(known).collect();
        let _scope = b.scope_path(&node.scope);
        let results = each(&NodeToCopy { builder: &b, node, operands, map: &map })?;
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("outputs and updates are live"));
    b.finish()
}

/// Values that an output, an update or another rank needs. One rank may not need the result of a
/// collective, but others wait for its part in it.
pub(crate) fn live(graph: &Graph) -> Vec<bool> {
    let updates = graph.states().iter().filter_map(|s| s.update);
    live_for(graph, graph.outputs().iter().map(|o| o.value).chain(updates))
}

/// The same where these values are needed, whatever the outputs.
pub(crate) fn live_for(graph: &Graph, needed: impl Iterator<Item = Value>) -> Vec<bool> {
    live_beside(graph, needed, meets)
}

/// The same with these nodes, and no other, for the sake of other ranks.
pub(crate) fn live_beside(
    graph: &Graph,
    needed: impl Iterator<Item = Value>,
    stays: fn(&Node) -> bool,
) -> Vec<bool> {
    let mut live = vec![false; graph.value_count()];
    needed.for_each(|v| live[v.0 as usize] = true);
    for node in graph.nodes().iter().rev() {
        if stays(node) {
            live[node.results[0].0 as usize] = true;
        }
        if node.results.iter().any(|v| live[v.0 as usize]) {
            node.operands.iter().for_each(|v| live[v.0 as usize] = true);
        }
    }
    live
}

/// The graph with these of its nodes, in this order: all that its outputs and updates need, each
/// behind its operands.
pub(crate) fn in_order<'g>(
    graph: &Graph,
    nodes: impl Iterator<Item = &'g Node>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: HashMap<Value, Expr<'_>> = b.declare(graph).into_iter().collect();
    for node in nodes {
        let operands: Vec<Expr<'_>> = node.operands.iter().map(|v| map[v]).collect();
        map.extend(node.results.iter().copied().zip(b.again(node, &operands)));
    }
    b.conclude(graph, |value| map[&value]);
    b.finish()
}

/// The regions of a node, each changed by `pass`.
pub(crate) fn regions(
    node: &Node,
    pass: impl FnMut(&Graph) -> Result<Graph, GraphError>,
) -> Result<Vec<Graph>, GraphError> {
    node.regions.iter().map(pass).collect()
}
