//! Bias correction: takes the mean error of each output channel out of the bias behind it.
//!
//! Rounding moves the mean of a channel, and a moved mean reaches all layers behind. So the bias of
//! a quantized layer becomes `b - E[W_q x_q - W x]`. There `x_q` is the input as the codes before
//! it and its own rounding leave it. E is the mean over calibration data
//! ([`OutputErrors`](super::OutputErrors)).
//!
//! The bias is that of the layer, or of the batch norm behind it. A layer with neither gets one,
//! where states may be added. Invariant: weights, codes and other layers stay as they are.
//!
//! Source: Nagel et al., "Data-free quantization through weight equalization and bias correction",
//! arXiv:1906.04721, section 4.2, in its empirical form.

use super::layers::{Layer, Skipped, layers};
use super::output_errors::{Branch, MeanErrors, free_name, products};
use super::streams::{norm_behind, own_state, values};
use super::{Additions, Quantized};
use overdrive_ir::{Builder, Graph, GraphError, Init, Tensor, Value};
use std::collections::BTreeMap;

/// The quantized model without these mean errors, `float` being the model that it was made of.
/// Layers without a bias of their own are listed, or get one where states may be added.
///
/// # Errors
/// When a graph is damaged.
pub fn correct_biases(
    mut made: Quantized,
    float: &Graph,
    errors: &MeanErrors,
    additions: Additions,
) -> Result<Quantized, GraphError> {
    let (found, _) = layers(float)?;
    let uses = float.use_counts();
    let mut corrected: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut added: BTreeMap<&str, &Vec<f64>> = BTreeMap::new();
    for layer in &found {
        let Some(error) = errors.get(&layer.name) else { continue };
        let mut uncorrected = |reason: &str| {
            let (layer, reason) = (layer.name.clone(), format!("{reason}: its bias stays"));
            made.simplified.push(Skipped { layer, reason });
        };
        match own_bias(float, &uses, layer) {
            _ if error.iter().any(|error| !error.is_finite()) => {
                uncorrected("its outputs in calibration are not finite");
            }
            Some(Bias { state, elements, slope }) => {
                let elements = elements.iter().zip(error).zip(slope);
                let elements = elements.map(|((bias, error), slope)| bias - slope * error);
                corrected.insert(state, elements.collect());
            }
            None if additions == Additions::Free => {
                added.insert(&layer.name, error);
            }
            None => uncorrected("its mean error has no bias of its own to go to"),
        }
    }
    let inits: BTreeMap<String, Init> =
        made.graph.states().iter().map(|s| (s.name.clone(), s.init.clone())).collect();
    let graph = made.graph.with_initial_values(|name, ty| match corrected.get(name) {
        Some(bias) => Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), bias)),
        None => inits[name].clone(),
    });
    made.graph = if added.is_empty() { graph } else { with_biases(&graph, &found, &added)? };
    Ok(made)
}

/// A bias that can take the error of a layer.
struct Bias {
    state: String,
    elements: Vec<f64>,
    /// The factor of each channel between the layer and the bias.
    slope: Vec<f64>,
}

/// The bias of a layer, or of the batch norm that alone reads it.
fn own_bias(graph: &Graph, uses: &[usize], layer: &Layer) -> Option<Bias> {
    let [part] = &layer.parts[..] else { return None };
    let node = graph.node(part.node);
    let own = |value: &Value| Some((own_state(graph, uses, *value)?, values(graph, *value)?));
    if let Some((state, elements)) = node.operands.get(2).and_then(own) {
        let slope = vec![1.0; elements.len()];
        return Some(Bias { state, elements, slope });
    }
    let made = node.results[0];
    let (norm, eps) = norm_behind(graph, uses, (layer, made))?;
    let (state, elements) = own(&norm.operands[2])?;
    let (scale, variance) = (values(graph, norm.operands[1])?, values(graph, norm.operands[4])?);
    let slope = scale.iter().zip(variance).map(|(s, v)| s / (v + eps).sqrt()).collect();
    Some(Bias { state, elements, slope })
}

/// The graph with a new bias behind each product of these layers.
fn with_biases(
    graph: &Graph,
    found: &[Layer],
    added: &BTreeMap<&str, &Vec<f64>>,
) -> Result<Graph, GraphError> {
    let products = products(graph, found);
    let b = Builder::new(graph.name());
    let mut branch = Branch::new(graph);
    for (value, expr) in b.declare(graph) {
        branch.map[value.0 as usize] = Some(expr);
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        branch.compute(&b, index + 1);
        let Some((layer, part)) = products.get(&index) else { continue };
        let Some(error) = added.get(&*layer.name) else { continue };
        let result = &node.results[0];
        let y = branch.get(result);
        let rows = layer.parts[*part].rows.clone();
        let bias: Vec<f64> = error[rows.clone()].iter().map(|error| -error).collect();
        let name = match &layer.parts[..] {
            [_] => format!("{}.correction", layer.name),
            _ => format!("{}.correction{}", layer.name, rows.start),
        };
        let tensor = Tensor::from_f64(y.dtype(), [bias.len()], &bias);
        let bias = b.state_named(&free_name(&b, &name), tensor.ty().clone(), Init::Value(tensor));
        let axis = layer.kind.channel_axis(y.rank());
        let _scope = b.scope_path(&node.scope);
        branch.map[result.0 as usize] = Some(y + bias.broadcast_in(&y.shape(), &[axis]));
    }
    b.conclude(graph, |v| branch.get(&v));
    b.finish()
}
