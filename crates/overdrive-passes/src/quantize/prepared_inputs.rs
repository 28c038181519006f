//! New rows for some linear layers, and nodes before them that fit their inputs to the rows.
//!
//! The part that factors and rotations share. Invariant: every other node stays as it is.

use super::layers::Layer;
use overdrive_ir::{Builder, Expr, Graph, GraphError, Init, Tensor, Value};
use std::collections::BTreeMap;

/// Builds the new input of a layer from its present one.
type BuildInput<'a> = dyn for<'b> Fn(&Layer, Expr<'b>) -> Expr<'b> + 'a;

/// The graph with these rows of K in place of those of each layer, which reads the results of
/// `input`.
///
/// # Errors
/// When the graph is damaged.
pub(super) fn with_inputs(
    graph: &Graph,
    moved: &[(Layer, Vec<f64>)],
    input: &BuildInput<'_>,
) -> Result<Graph, GraphError> {
    let products: BTreeMap<u32, &Layer> = moved
        .iter()
        .flat_map(|(layer, _)| layer.parts.iter().map(move |part| (part.node.0, layer)))
        .collect();
    let stored = |(layer, rows): &(Layer, Vec<f64>)| {
        let ty = graph.ty(layer.state(graph).value);
        let tensor = Tensor::from_f64(ty.dtype, ty.shape.clone(), &layer.stored(rows));
        (layer.weight.clone(), tensor)
    };
    let weights: BTreeMap<String, Tensor> = moved.iter().map(stored).collect();
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    let init_of =
        |name: &str| graph.states().iter().find(|s| s.name == name).map(|s| s.init.clone());
    let weighted = graph.clone().with_initial_values(|name, _| match weights.get(name) {
        Some(tensor) => Init::Value(tensor.clone()),
        None => init_of(name).expect("a graph names its own states"),
    });
    for (value, expr) in b.declare(&weighted) {
        map[value.0 as usize] = Some(expr);
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let known = |v: &Value| map[v.0 as usize].expect("operands precede their node");
        let mut operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
        if let Some(layer) = products.get(&(index as u32)) {
            let _scope = b.scope_path(&node.scope);
            operands[0] = input(layer, operands[0]);
        }
        let results = b.again(node, &operands);
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("every value was copied"));
    b.finish()
}
