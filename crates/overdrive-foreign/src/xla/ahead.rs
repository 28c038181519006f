//! Splits a graph in what depends on parameters alone, computed once for as long as they stay what
//! they are, and the rest.
//!
//! XLA sees parameters as arguments, since they may change between calls, and would cast weights to
//! bf16 in every call. Our own back ends do it ahead (`Step::prepare`). Invariant: the two graphs
//! in sequence compute the same as the original.

use overdrive_ir::{Builder, Graph, GraphError, NodeId, Origin, Prim, Value};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A graph in two parts.
pub(super) struct Split {
    /// From some states, as inputs of their names, to values, as outputs in order.
    pub(super) ahead: Graph,
    /// The graph with those values as further inputs.
    pub(super) rest: Graph,
}

/// `None` where nothing can be computed ahead.
pub(super) fn split(graph: &Graph) -> Result<Option<Split>, GraphError> {
    let constant: HashSet<Value> = graph
        .states()
        .iter()
        .filter(|state| state.update.is_none())
        .map(|state| state.value)
        .collect();
    let mut early = constant.clone();
    for node in graph.nodes() {
        let bytes =
            |values: &[Value]| graph.types(values).iter().map(|ty| ty.bytes()).sum::<usize>();
        // A value that grows is cheaper to compute than to read.
        let shrinks = bytes(&node.results) <= bytes(&node.operands);
        let is_drawn = matches!(node.op.prim(), Some(Prim::RandomBits { .. }));
        if !node.operands.is_empty()
            && shrinks
            && !is_drawn
            && node.operands.iter().all(|v| early.contains(v))
        {
            early.extend(&node.results);
        }
    }
    let is_early = |id: usize| graph.nodes()[id].results.iter().any(|value| early.contains(value));
    let mut wanted: BTreeSet<Value> = BTreeSet::new();
    let mut want = |value: Value| {
        if early.contains(&value) && !constant.contains(&value) {
            wanted.insert(value);
        }
    };
    for (id, node) in graph.nodes().iter().enumerate() {
        if !is_early(id) {
            node.operands.iter().copied().for_each(&mut want);
        }
    }
    graph.outputs().iter().for_each(|port| want(port.value));
    graph.states().iter().filter_map(|state| state.update).for_each(&mut want);
    if wanted.is_empty() {
        return Ok(None);
    }
    let needed = ancestors(graph, &wanted);
    let ahead = ahead(graph, &needed, &wanted)?;
    let rest = rest(graph, &early, &wanted)?;
    Ok(Some(Split { ahead, rest }))
}

/// The values that `wanted` are made of, themselves included.
fn ancestors(graph: &Graph, wanted: &BTreeSet<Value>) -> HashSet<Value> {
    let mut needed: HashSet<Value> = wanted.iter().copied().collect();
    for node in graph.nodes().iter().rev() {
        if node.results.iter().any(|value| needed.contains(value)) {
            needed.extend(&node.operands);
        }
    }
    needed
}

fn ahead(
    graph: &Graph,
    needed: &HashSet<Value>,
    wanted: &BTreeSet<Value>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(&format!("{}_ahead", graph.name()));
    let mut terms = HashMap::new();
    for state in graph.states().iter().filter(|state| needed.contains(&state.value)) {
        terms.insert(state.value, b.input(&state.name, graph.ty(state.value).clone()));
    }
    for node in graph.nodes().iter().filter(|node| node.results.iter().any(|v| needed.contains(v)))
    {
        let operands: Vec<_> = node.operands.iter().map(|value| terms[value]).collect();
        terms.extend(node.results.iter().copied().zip(b.again(node, &operands)));
    }
    wanted.iter().for_each(|value| b.output(&format!("ahead{}", value.0), terms[value]));
    b.finish()
}

fn rest(
    graph: &Graph,
    early: &HashSet<Value>,
    wanted: &BTreeSet<Value>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut terms: HashMap<Value, _> = b.declare(graph).into_iter().collect();
    let mut prefix = "ahead".to_owned();
    while graph.inputs().iter().any(|port| port.name.starts_with(&prefix)) {
        prefix.push('_');
    }
    for &value in wanted {
        terms.insert(value, b.input(&format!("{prefix}{}", value.0), graph.ty(value).clone()));
    }
    let is_left = |value: Value| match graph.origin(value) {
        Origin::Node(NodeId(_), _) => !early.contains(&value),
        _ => false,
    };
    for node in graph.nodes().iter().filter(|node| node.results.iter().copied().all(is_left)) {
        let operands: Vec<_> = node.operands.iter().map(|value| terms[value]).collect();
        terms.extend(node.results.iter().copied().zip(b.again(node, &operands)));
    }
    b.conclude(graph, |value| terms[&value]);
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{DType, Init, Tensor, TensorType, eval};

    #[test]
    fn casts_of_weights_are_computed_ahead_and_the_parts_mean_the_whole() {
        let b = Builder::new("two");
        let ty = |sizes: [usize; 2]| TensorType::new(DType::F32, sizes);
        let x = b.input("x", ty([2, 3]));
        let w = b.state("w", ty([3, 4]), Init::Normal { std: 1.0, seed: 3 });
        let s = b.state("s", ty([3, 4]), Init::Normal { std: 1.0, seed: 4 });
        let short = w.convert(DType::BF16).convert(DType::F32);
        b.output("y", x.matmul(short + s.convert(DType::BF16).convert(DType::F32)));
        b.update("s", s + 1.0);
        let graph = b.finish().unwrap();
        let Split { ahead, rest } = split(&graph).unwrap().unwrap();
        assert_eq!((ahead.inputs().len(), ahead.nodes().len(), ahead.outputs().len()), (1, 1, 1));
        // Widening the short weights again reads less than it writes, so it stays.
        assert_eq!(rest.nodes().len(), graph.nodes().len() - 1);
        let point = Tensor::from_f32([2, 3], &[1.0, -2.0, 0.5, 3.0, 0.25, -1.0]);
        let (point, mut states) = (overdrive_ir::Array::from(&point), eval::States::new());
        let expected = eval::eval(&graph, std::slice::from_ref(&point), &mut states);
        let w = overdrive_ir::Array::from(&graph.states()[0].init.tensor("w", &ty([3, 4])));
        let early = eval::eval(&ahead, &[w], &mut eval::States::new());
        let inputs: Vec<_> = [point].into_iter().chain(early).collect();
        assert_eq!(eval::eval(&rest, &inputs, &mut eval::States::new()), expected);
    }

    #[test]
    fn without_work_on_weights_there_is_one_part() {
        let b = Builder::new("one");
        let x = b.input("x", TensorType::new(DType::F32, [2usize]));
        let w = b.state("w", TensorType::new(DType::F32, [2usize]), Init::Constant(2.0));
        b.output("y", x * w);
        assert!(split(&b.finish().unwrap()).unwrap().is_none());
    }
}
