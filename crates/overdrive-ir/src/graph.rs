//! `Graph`: a model as SSA values in an append-only arena.
//!
//! Values are indices; a node has operands, results, attributes (inside its `Operation`), regions
//! and the scope it was written in. Graphs are built by [`Builder`] and never mutated: a pass reads
//! one graph and builds another. Invariants (checked by `verify`): operands precede their node, and
//! every type is what `infer` says. Names of inputs, outputs and states are unique. Regions capture
//! nothing but their explicit inputs.

mod builder;
mod expr;
mod init;
mod vectorize;

pub use builder::{Builder, Mark, Scope};
pub use expr::Expr;
pub use init::Init;
pub(crate) use vectorize::{PointValue, check_lanes};

use crate::{Operation, TensorType};
use std::sync::Arc;

/// A value of a graph.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value(pub u32);

/// A node of a graph.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

/// The origin of a value.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// Input number `0`.
    Input(usize),
    /// State number `0`, as it is at the start of the call.
    State(usize),
    /// Result `1` of node `0`.
    Node(NodeId, usize),
}

/// One application of an operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// The op that is applied.
    pub op: Operation,
    /// To which values; captures of regions come last.
    pub operands: Vec<Value>,
    /// Giving which values.
    pub results: Vec<Value>,
    /// Sub-graphs, whose inputs the operation defines.
    pub regions: Vec<Graph>,
    /// The place in the model where it was written: `block3/attention`.
    pub scope: Arc<str>,
}

/// A named value.
#[derive(Clone, PartialEq, Debug)]
pub struct Port {
    /// Name that users see.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// A value that lives outside the executable, keyed by name.
#[derive(Clone, PartialEq, Debug)]
pub struct StateDecl {
    /// Stable name, as in weight files.
    pub name: String,
    /// The value at the start of a call.
    pub value: Value,
    /// Its value before the first call.
    pub init: Init,
    /// The value that replaces it at the end of a call.
    pub update: Option<Value>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ValueInfo {
    pub(crate) ty: TensorType,
    pub(crate) origin: Origin,
}

/// A model, or a region inside one.
#[derive(Clone, PartialEq, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) states: Vec<StateDecl>,
}

/// Why a graph could not be built or does not hold together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} at {scope}: expected {expected}, found {found}; {remedy}")]
pub struct GraphError {
    /// Name of the op.
    pub op: String,
    /// Scope of the node.
    pub scope: String,
    /// A description of what the op expects.
    pub expected: String,
    /// A description of what was found.
    pub found: String,
    /// The remedy.
    pub remedy: String,
}

impl Graph {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same graph with other initial values of its states, by name and type.
    pub fn with_initial_values(mut self, mut init: impl FnMut(&str, &TensorType) -> Init) -> Self {
        for state in &mut self.states {
            let ty = &self.values[state.value.0 as usize].ty;
            state.init = init(&state.name, ty);
            if let Init::Value(tensor) = &state.init {
                assert_eq!(
                    tensor.ty(),
                    ty,
                    "the initial value of state `{}` has its declared type",
                    state.name
                );
            }
        }
        self
    }

    /// Nodes in an order in which they can be computed.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node behind an id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = Value> + use<> {
        (0..self.values.len() as u32).map(Value)
    }

    /// Type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value.0 as usize].ty
    }

    /// Types of several values.
    pub fn types(&self, values: &[Value]) -> Vec<TensorType> {
        values.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// The origin of a value.
    pub fn origin(&self, value: Value) -> Origin {
        self.values[value.0 as usize].origin
    }

    /// The node that computes a value, if one does.
    pub fn producer(&self, value: Value) -> Option<&Node> {
        match self.origin(value) {
            Origin::Node(id, _) => Some(self.node(id)),
            _ => None,
        }
    }

    /// Inputs in calling order.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Outputs in calling order.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// States in order of declaration.
    pub fn states(&self) -> &[StateDecl] {
        &self.states
    }

    /// True when no dimension is a name any more.
    pub fn is_bound(&self) -> bool {
        self.values.iter().all(|v| v.ty.shape.known().is_some())
    }

    /// For each value, how many operands, outputs and updates use it.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        let uses = self.nodes.iter().flat_map(|n| n.operands.iter().copied());
        let results =
            self.outputs.iter().map(|o| o.value).chain(self.states.iter().filter_map(|s| s.update));
        uses.chain(results).for_each(|v| counts[v.0 as usize] += 1);
        counts
    }

    /// FLOPs and compulsory bytes, summed over nodes.
    pub fn cost(&self) -> crate::Cost {
        self.nodes.iter().map(|n| self.node_cost(n)).sum()
    }

    /// FLOPs and bytes of one node.
    pub fn node_cost(&self, node: &Node) -> crate::Cost {
        node.op.cost(&self.types(&node.operands), &node.regions, &self.types(&node.results))
    }

    /// Copies the graph, replacing nodes: `replace` sees each node with its operands in the new
    /// graph (regions already rewritten). It returns the new results, or `None` to keep the node as
    /// it is.
    pub fn rewrite(&self, replace: &mut Replace<'_>) -> Result<Graph, GraphError> {
        let b = Builder::new(&self.name);
        let map = b.append_with(self, replace)?;
        b.conclude(self, |value| map[value.0 as usize]);
        b.finish()
    }
}

/// The function that `Graph::rewrite` asks about each node.
pub type Replace<'r> =
    dyn for<'b> FnMut(&'b Builder, &Node, &[Expr<'b>]) -> Option<Vec<Expr<'b>>> + 'r;
