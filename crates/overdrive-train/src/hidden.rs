//! The weights of a model's hidden layers: matrices that map one inner vector to another.
//!
//! A matrix of the model stands behind a hidden layer, and a linear layer follows it. So the first
//! layer and the head are none. A table that an index looks up, tied to the head or not, is read by
//! more than linear layers. The graph says all of this, so names do not matter.

use overdrive_ir::ops::Linear;
use overdrive_ir::{Graph, Node, Prim, Value};
use std::collections::BTreeSet;

/// The names of states that are weights of hidden linear layers, and nothing else.
pub(crate) fn hidden_matrices(graph: &Graph) -> BTreeSet<String> {
    let (made, leads) = (made_by_a_matrix(graph), leads_to_a_layer(graph));
    let mut readers: Vec<Vec<&Node>> = vec![vec![]; graph.value_count()];
    for node in graph.nodes() {
        node.operands.iter().for_each(|value| readers[value.0 as usize].push(node));
    }
    let is_hidden = |node: &Node| made[at(node.operands[0])] && leads[at(node.results[0])];
    let is_weight = |weight: Value| {
        let mut views = vec![weight];
        while let Some(value) = views.pop() {
            for node in &readers[at(value)] {
                match node.op.prim() {
                    Some(Prim::Transpose { .. } | Prim::Slice { .. }) => {
                        views.push(node.results[0]);
                    }
                    _ if is_layer(node) && node.operands[1] == value && is_hidden(node) => {}
                    _ => return false,
                }
            }
        }
        !readers[at(weight)].is_empty()
    };
    let is_output = |value: Value| graph.outputs().iter().any(|port| port.value == value);
    let hidden = graph.states().iter().filter(|state| {
        let is_matrix = graph.ty(state.value).rank() == 2 && state.update.is_none();
        is_matrix && !is_output(state.value) && is_weight(state.value)
    });
    hidden.map(|state| state.name.clone()).collect()
}

fn at(value: Value) -> usize {
    value.0 as usize
}

fn is_layer(node: &Node) -> bool {
    node.op.composite::<Linear>().is_some()
}

/// For each value, whether a matrix of the model is behind it.
fn made_by_a_matrix(graph: &Graph) -> Vec<bool> {
    let mut made = vec![false; graph.value_count()];
    for state in graph.states() {
        let ty = graph.ty(state.value);
        made[at(state.value)] = ty.dtype.is_float() && ty.rank() > 1;
    }
    for node in graph.nodes() {
        let is_made = node.operands.iter().any(|value| made[at(*value)]);
        node.results.iter().for_each(|value| made[at(*value)] = is_made);
    }
    made
}

/// For each value, whether a linear layer reads it or a value computed from it.
fn leads_to_a_layer(graph: &Graph) -> Vec<bool> {
    let mut leads = vec![false; graph.value_count()];
    for node in graph.nodes().iter().rev() {
        if is_layer(node) || node.results.iter().any(|value| leads[at(*value)]) {
            node.operands.iter().for_each(|value| leads[at(*value)] = true);
        }
    }
    leads
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Builder, DType, Init, TensorType};

    #[test]
    fn a_hidden_matrix_is_no_table_no_head_and_no_first_layer() {
        let b = Builder::new("model");
        let of = |name: &str, sizes: &[usize]| {
            b.state_named(name, TensorType::new(DType::F32, sizes.to_vec()), Init::ZEROS)
        };
        let ids = b.input("x", TensorType::new(DType::I32, [4usize]));
        let pixels = b.input("pixels", TensorType::new(DType::F32, [4usize, 6]));
        let table = of("table", &[9, 8]);
        let looked = table.embedding(ids) + of("positions", &[4, 8]);
        let h = looked + pixels.linear(of("patches", &[6, 8]), None);
        // One state that three products read in parts, held as [out, in].
        let fused = of("fused", &[24, 8]);
        let part = |at: usize| h.linear(fused.slice_axis(0, 8 * at, 8 * at + 8).t(), None);
        let h = (part(0) + part(1) * part(2)).linear(of("ffn", &[8, 8]), Some(of("bias", &[8])));
        // Read by more than its product.
        let penalized = of("penalized", &[8, 8]);
        let h = h.tanh().linear(penalized, None);
        b.output("penalty", penalized.sum(&[0, 1]));
        b.output("y", h.linear(table.t(), None));
        b.output("z", h.linear(of("head", &[8, 3]), None));
        let found = hidden_matrices(&b.finish().unwrap());
        assert_eq!(found.iter().collect::<Vec<_>>(), ["ffn", "fused"]);
    }
}
