//! `rescale` moves factors from activations into weights: `x w = (x / f) (f w)`, in a layer's own
//! input channels.
//!
//! The part that SmoothQuant and AWQ share. The division is a product with a parameter of `1 / f`,
//! which fuses into the producer of x. Invariant: the graph computes the same, except for rounding.

use super::coded::shared;
use super::held::LayerKind;
use super::layers::{Layer, layers};
use overdrive_ir::{Builder, DType, Expr, Graph, GraphError, Init, Tensor};
use std::collections::BTreeMap;

/// The graph with the factors `[K]` of each named linear layer moved into its weight.
///
/// # Errors
/// When the graph is damaged.
pub fn rescale(graph: &Graph, factors: &BTreeMap<String, Vec<f64>>) -> Result<Graph, GraphError> {
    let (found, _) = layers(graph)?;
    let linear = found.into_iter().filter(|layer| layer.kind == LayerKind::Linear);
    let moved: Vec<(&Vec<f64>, Layer)> =
        linear.filter_map(|layer| Some((factors.get(&layer.name)?, layer))).collect();
    let products: BTreeMap<u32, usize> = moved
        .iter()
        .enumerate()
        .flat_map(|(at, (_, layer))| layer.parts.iter().map(move |part| (part.node.0, at)))
        .collect();
    let weights: BTreeMap<String, Tensor> = moved
        .iter()
        .map(|(factors, layer)| {
            let k = layer.shape[1];
            let rows: Vec<f64> =
                layer.rows(graph).iter().enumerate().map(|(i, w)| w * factors[i % k]).collect();
            let ty = graph.ty(layer.state(graph).value);
            (
                layer.weight.clone(),
                Tensor::from_f64(ty.dtype, ty.shape.clone(), &layer.stored(&rows)),
            )
        })
        .collect();
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
        let known =
            |v: &overdrive_ir::Value| map[v.0 as usize].expect("operands precede their node");
        let mut operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
        if let Some(&at) = products.get(&(index as u32)) {
            let (factors, layer) = &moved[at];
            let _scope = b.scope_path(&node.scope);
            let inverse: Vec<f64> = factors.iter().map(|f| 1.0 / f).collect();
            let tensor = Tensor::from_f64(DType::F32, [inverse.len()], &inverse);
            let name = format!("{}.input_multiplier", layer.name);
            let ty = tensor.ty().clone();
            operands[0] = operands[0] * shared(&b, &name, &ty, || Init::Value(tensor));
        }
        let results = b.again(node, &operands);
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("every value was copied"));
    b.finish()
}
