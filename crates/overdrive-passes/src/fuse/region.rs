//! Cutting a set of nodes out of a graph as a region.
//!
//! Views, scalar constants and iotas are cloned into the region that uses them: they cost nothing
//! there, and outside they would be buffers. Invariant: region inputs are values that exist before
//! the group runs.

use crate::legalize::expanded_from;
use crate::lower::index::is_view;
use overdrive_ir::{Builder, Expr, Graph, Node, NodeId, Origin, Prim, Value};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A group of nodes cut out of a graph.
pub(crate) struct Cut {
    /// The group as a graph of its own.
    pub(crate) region: Graph,
    /// The values that it reads, in the order of region inputs.
    pub(crate) inputs: Vec<Value>,
    /// The values that it computes for others, in the order of region outputs.
    pub(crate) outputs: Vec<Value>,
}

/// The values that a cut reads and gives, known without the graph of it. Most groups that are
/// tried are refused for that alone.
pub(super) struct Outline {
    /// As of [`Cut`].
    pub(super) inputs: Vec<Value>,
    /// As of [`Cut`].
    pub(super) outputs: Vec<Value>,
}

/// True for primitives that are computed element by element or by folding, or that cost nothing in
/// a loop.
pub(super) fn is_loop(prim: &Prim) -> bool {
    prim.is_elementwise()
        || matches!(prim, Prim::Reduce { .. } | Prim::RandomBits { .. } | Prim::Iota { .. })
        || matches!(prim, Prim::Constant { value } if value.ty().elements() == 1)
}

/// True for nodes that are copied into their users' groups.
pub(crate) fn is_cloned(graph: &Graph, node: &Node) -> bool {
    match node.op.prim() {
        Some(Prim::Constant { value }) => value.ty().elements() == 1,
        Some(Prim::Iota { .. }) => true,
        Some(Prim::Reshape { .. }) => splits_only(graph, node),
        Some(prim) => is_view(prim),
        None => false,
    }
}

/// A reshape that merges no axes has an affine index in its result.
fn splits_only(graph: &Graph, node: &Node) -> bool {
    let operand = graph.ty(node.operands[0]).sizes();
    let result = graph.ty(node.results[0]).sizes();
    let map = (0..result.len()).map(crate::lower::index::Affine::dim).collect();
    let prim = node.op.prim().expect("a reshape is a primitive");
    crate::lower::index::through_view(prim, &operand, &map).is_some()
}

struct Cutter<'g, 'b> {
    graph: &'g Graph,
    members: &'g BTreeSet<u32>,
    b: &'b Builder,
    map: HashMap<Value, Expr<'b>>,
    inputs: Vec<Value>,
}

impl<'b> Cutter<'_, 'b> {
    fn pull(&mut self, value: Value) -> Expr<'b> {
        if let Some(&expr) = self.map.get(&value) {
            return expr;
        }
        let node = match self.graph.origin(value) {
            Origin::Node(id, _) if is_cloned(self.graph, self.graph.node(id)) => {
                self.graph.node(id)
            }
            _ => {
                let input =
                    self.b.input(&self.inputs.len().to_string(), self.graph.ty(value).clone());
                self.inputs.push(value);
                self.map.insert(value, input);
                return input;
            }
        };
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|&v| self.pull(v)).collect();
        let result = self.b.op1(node.op.clone(), &operands);
        self.map.insert(value, result);
        result
    }

    fn member(&mut self, id: u32) {
        let node = self.graph.node(NodeId(id));
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|&v| self.pull(v)).collect();
        let results = self.b.node(node.op.clone(), &operands, node.regions.clone());
        self.map.extend(node.results.iter().copied().zip(results));
    }
}

/// The outline of `members`. `cloned` says which nodes of the graph are copied into groups, and
/// `used_outside` which results of the members somebody else reads.
pub(super) fn outline(
    graph: &Graph,
    members: &BTreeSet<u32>,
    cloned: &[bool],
    used_outside: impl Fn(Value) -> bool,
) -> Outline {
    let results = || members.iter().flat_map(|&id| &graph.node(NodeId(id)).results);
    let (mut seen, mut inputs) = (HashSet::new(), vec![]);
    for &id in members {
        // Operands are met in the order in which a cutter pulls them.
        let mut pending: Vec<Value> =
            graph.node(NodeId(id)).operands.iter().rev().copied().collect();
        while let Some(value) = pending.pop() {
            let origin = graph.origin(value);
            if matches!(origin, Origin::Node(id, _) if members.contains(&id.0)) {
                continue;
            }
            if !seen.insert(value) {
                continue;
            }
            match origin {
                Origin::Node(id, _) if cloned[id.0 as usize] => {
                    pending.extend(graph.node(id).operands.iter().rev());
                }
                _ => inputs.push(value),
            }
        }
    }
    let outputs = results().copied().filter(|&value| used_outside(value)).collect();
    Outline { inputs, outputs }
}

/// Cuts `members` out; `used_outside` says which of their results somebody else reads.
pub(super) fn cut(
    graph: &Graph,
    members: &BTreeSet<u32>,
    used_outside: impl Fn(Value) -> bool,
) -> Cut {
    let b = Builder::new("fused");
    let mut cutter = Cutter { graph, members, b: &b, map: HashMap::new(), inputs: vec![] };
    for &id in cutter.members {
        cutter.member(id);
    }
    let mut outputs = vec![];
    for &id in members {
        for &value in &graph.node(NodeId(id)).results {
            if used_outside(value) {
                b.output(&outputs.len().to_string(), cutter.map[&value]);
                outputs.push(value);
            }
        }
    }
    let inputs = std::mem::take(&mut cutter.inputs);
    drop(cutter);
    let region = b.finish().unwrap_or_else(|e| panic!("a cut keeps types: {e}"));
    Cut { region, inputs, outputs }
}

/// A name for people: the model's ops that the group computes, in order, views and constants left
/// out.
pub(super) fn label(graph: &Graph, members: &BTreeSet<u32>) -> String {
    let named = |id: &u32| {
        let node = graph.node(NodeId(*id));
        let counts = node.op.prim().is_none_or(|prim| !is_view(prim) && is_loop(prim));
        let name = || expanded_from(&node.scope).map_or_else(|| node.op.name(), str::to_owned);
        (counts || crate::lower::is_contraction(node)).then(name)
    };
    let mut names: Vec<String> = members.iter().filter_map(named).collect();
    names.dedup();
    const SHOWN: usize = 6;
    let rest = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    if rest > 0 { format!("{}+{rest} more", names.join("+")) } else { names.join("+") }
}

/// One node as a region, with the views and scalars it reads.
pub(crate) fn cut_one(graph: &Graph, id: NodeId) -> Cut {
    cut(graph, &BTreeSet::from([id.0]), |_| true)
}

/// Splits a region at one of its values: the part that computes it, and the rest with that value as
/// last input.
pub(crate) fn split_at(region: &Graph, value: Value) -> (Graph, Graph) {
    let part = |is_first: bool| {
        let b = Builder::new("part");
        let mut map: HashMap<Value, Expr<'_>> = HashMap::new();
        for port in region.inputs() {
            map.insert(port.value, b.input(&port.name, region.ty(port.value).clone()));
        }
        if !is_first {
            map.insert(value, b.input("sum", region.ty(value).clone()));
        }
        for node in region.nodes() {
            if node.results.iter().all(|v| map.contains_key(v)) {
                continue;
            }
            let operands: Vec<Expr<'_>> = node.operands.iter().map(|v| map[v]).collect();
            let results = b.node(node.op.clone(), &operands, node.regions.clone());
            map.extend(node.results.iter().copied().zip(results));
        }
        if is_first {
            b.output("0", map[&value]);
        } else {
            region.outputs().iter().for_each(|o| b.output(&o.name, map[&o.value]));
        }
        b.finish().unwrap_or_else(|e| panic!("a part of a region keeps types: {e}"))
    };
    (part(true), part(false))
}
