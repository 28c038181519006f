//! Codes of weights, made once an update.
//!
//! Weights change once an update, however many batches it has. So their codes of fp8 and the scales
//! of these are states, in each layout that products read. The update makes them of the new
//! weights, and no batch casts a weight. They have the bits that a cast in each batch has. A
//! checkpoint does not hold them: they are made again of the weights that it holds.

use overdrive_ir::{Builder, Expr, Graph, GraphError, Init, Node, StateDecl, Value};
use overdrive_passes::{DelayedScales, cse, dce, expand_float8};
use std::collections::BTreeMap;

/// Begins the names of codes of weights.
const CODES: &str = "float8.codes.";

/// Whether a state is codes of weights, or a scale of them.
pub(crate) fn is_code(state: &str) -> bool {
    state.starts_with(CODES)
}

/// The graph of a batch that reads codes of weights.
pub(crate) struct Kept {
    pub(crate) graph: Graph,
    /// Makes the codes of the weights that there are, and changes nothing else.
    pub(crate) make: Graph,
}

/// The graph of a batch with codes of the weights of these names as states. If it updates the
/// weights, it makes their codes new.
///
/// # Errors
/// When the graph is ill-formed.
pub(crate) fn kept(graph: &Graph, names: &[String]) -> Result<Kept, GraphError> {
    let scales = DelayedScales::of(graph).of_weights();
    let graph = &dce(&cse(&expand_float8(graph)?)?)?;
    let casts = Casts::of(graph, &|name| names.contains(name) || scales.contains(name));
    Ok(Kept { graph: dce(&casts.read()?)?, make: dce(&casts.made()?)? })
}

/// The part of a run that a value depends on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Constants,
    Weights,
    Batch,
}

/// The casts of weights of a graph.
struct Casts<'g> {
    graph: &'g Graph,
    /// States that change once an update: weights, and delayed scales of them.
    weights: Vec<&'g StateDecl>,
    /// Nodes that a batch decides nothing of.
    nodes: Vec<&'g Node>,
    /// The codes and scales that others read, and the names of their states.
    codes: BTreeMap<Value, String>,
}

impl<'g> Casts<'g> {
    fn of(graph: &'g Graph, is_weight: &dyn Fn(&String) -> bool) -> Self {
        let weights = graph.states().iter().filter(|state| is_weight(&state.name));
        let weights: Vec<&StateDecl> = weights.collect();
        let mut of = vec![Of::Batch; graph.value_count()];
        weights.iter().for_each(|state| of[state.value.0 as usize] = Of::Weights);
        for node in graph.nodes() {
            let operands = node.operands.iter().map(|value| of[value.0 as usize]);
            let most = operands.max().unwrap_or(Of::Constants);
            node.results.iter().for_each(|value| of[value.0 as usize] = most);
        }
        let of = |node: &Node| of[node.results[0].0 as usize];
        let nodes: Vec<&Node> = graph.nodes().iter().filter(|node| of(node) != Of::Batch).collect();
        let casts = nodes.iter().filter(|node| of(node) == Of::Weights && narrows(graph, node));
        let (uses, mut codes) = (graph.use_counts(), BTreeMap::new());
        for (cast, node) in casts.enumerate() {
            let results = node.results.iter().enumerate();
            for (at, value) in results.filter(|(_, value)| uses[value.0 as usize] > 0) {
                codes.insert(*value, format!("{CODES}{cast}.{at}"));
            }
        }
        Self { graph, weights, nodes, codes }
    }

    /// The graph with casts read from states.
    fn read(&self) -> Result<Graph, GraphError> {
        let graph = self.graph;
        let b = Builder::new(graph.name());
        let mut values: BTreeMap<Value, Expr<'_>> = b.declare(graph).into_iter().collect();
        let codes = self.declare(&b);
        for node in graph.nodes() {
            let operands: Vec<Expr<'_>> = node.operands.iter().map(|v| values[v]).collect();
            for (value, result) in node.results.iter().zip(b.again(node, &operands)) {
                values.insert(*value, codes.get(value).copied().unwrap_or(result));
            }
        }
        b.conclude(graph, |value| values[&value]);
        if self.weights.iter().any(|state| state.update.is_some()) {
            let new = |state: &&StateDecl| values[&state.update.unwrap_or(state.value)];
            self.make(&b, self.weights.iter().map(|state| (state.value, new(state))).collect());
        }
        b.finish()
    }

    /// The graph that makes them.
    fn made(&self) -> Result<Graph, GraphError> {
        let b = Builder::new(&format!("{}.codes", self.graph.name()));
        let state = |state: &&StateDecl| {
            let ty = self.graph.ty(state.value).clone();
            (state.value, b.state_named(&state.name, ty, state.init.clone()))
        };
        let weights = self.weights.iter().map(state).collect();
        self.declare(&b);
        self.make(&b, weights);
        b.finish()
    }

    /// The states of codes.
    fn declare<'b>(&self, b: &'b Builder) -> BTreeMap<Value, Expr<'b>> {
        let state = |(value, name): (&Value, &String)| {
            (*value, b.state_named(name, self.graph.ty(*value).clone(), Init::ZEROS))
        };
        self.codes.iter().map(state).collect()
    }

    /// Updates these states from weights by their values in `graph`.
    fn make<'b>(&self, b: &'b Builder, mut values: BTreeMap<Value, Expr<'b>>) {
        for node in &self.nodes {
            let operands: Vec<Expr<'b>> = node.operands.iter().map(|v| values[v]).collect();
            values.extend(node.results.iter().copied().zip(b.again(node, &operands)));
        }
        self.codes.iter().for_each(|(value, name)| b.update(name, values[value]));
    }
}

/// Whether an op reads tensors of more than 8 bits and gives floats of at most 8.
fn narrows(graph: &Graph, node: &Node) -> bool {
    let is_wide = |value: &Value| {
        let ty = graph.ty(*value);
        ty.rank() > 0 && ty.dtype.bits() > 8
    };
    let is_narrow = |value: &Value| {
        let dtype = graph.ty(*value).dtype;
        dtype.is_float() && dtype.bits() <= 8
    };
    node.operands.iter().any(is_wide) && node.results.iter().any(is_narrow)
}

#[cfg(test)]
mod tests;
