//! `rescale` moves factors from activations into weights: `x w = (x / f) (f w)`, in a layer's own
//! input channels.
//!
//! The part that SmoothQuant and AWQ share. The division is a product with a parameter of `1 / f`,
//! which fuses into the producer of x. Invariant: the graph computes the same, except for rounding.

use super::coded::shared;
use super::held::LayerKind;
use super::layers::{Layer, layers};
use super::prepared_inputs::with_inputs;
use overdrive_ir::{DType, Graph, GraphError, Init, Tensor};
use std::collections::BTreeMap;

/// The graph with the factors `[K]` of each named linear layer moved into its weight.
///
/// # Errors
/// When the graph is damaged.
pub fn rescale(graph: &Graph, factors: &BTreeMap<String, Vec<f64>>) -> Result<Graph, GraphError> {
    let (found, _) = layers(graph)?;
    let linear = found.into_iter().filter(|layer| layer.kind == LayerKind::Linear);
    let known = linear.filter(|layer| factors.contains_key(&layer.name));
    let moved = known.map(|layer| {
        let (factors, k) = (&factors[&layer.name], layer.shape[1]);
        let rows = layer.rows(graph).iter().enumerate().map(|(i, w)| w * factors[i % k]).collect();
        (layer, rows)
    });
    let moved: Vec<(Layer, Vec<f64>)> = moved.collect();
    with_inputs(graph, &moved, &|layer, x| {
        let inverse: Vec<f64> = factors[&layer.name].iter().map(|f| 1.0 / f).collect();
        let tensor = Tensor::from_f64(DType::F32, [inverse.len()], &inverse);
        let name = format!("{}.input_multiplier", layer.name);
        let ty = tensor.ty().clone();
        x * shared(x.builder(), &name, &ty, || Init::Value(tensor))
    })
}
