//! `estimate_losses` gives a graph that estimates what the model loses by each group of layers in
//! each mode, from gradients of the float model.
//!
//! Let `δ` be the change of a group's outputs by its codes, those of the activations included. The
//! loss of a row then changes by `½ δᵀ Jᵀ H J δ`. `J` is the Jacobian of the model's outputs in
//! those of the group, and `H` the curvature of the loss in the model's outputs. For classes this
//! is the Fisher matrix of the float model. The term of first order is left out. With labels of the
//! model's own distribution it is 0, and the gradient that a trained model has left is noise of its
//! samples.
//!
//! Let `A Aᵀ = H`, and `r` be random signs over the model's outputs. One backward pass then gives
//! `c = Jᵀ A r` for every layer at once, and `(cᵀ δ)²` has the mean `δᵀ Jᵀ H J δ`. With `S`
//! samples in a batch and `R` rows in their outputs, a draw of the estimate is
//!
//! ```text
//! Σ_s (Σ_{i in s} c_i δ_i)² / 2R
//! ```
//!
//! Within a sample all errors count together: those of one weight in many rows, and those of layers
//! that read one value. Errors that cancel within a row of weights, as GPTQ's do, cancel here too.
//! Between samples the signs cancel. So `D` samples give `D` draws, and the relative error of their
//! mean is about `√(2/D)`. Diagonal forms have less noise, but take errors for independent that are
//! not.
//!
//! Sources:
//! - LeCun et al., "Optimal brain damage", NIPS 1989: loss by second derivatives, none of first
//!   order at a minimum.
//! - Kim et al., "SqueezeLLM", arXiv:2306.07629: the Fisher matrix as these derivatives, for
//!   rounded weights.
//! - Dong et al., "HAWQ-V2", arXiv:1911.03852: random signs for the curvature; layers ranked by it
//!   and by their rounding error.

use super::Quantization;
use super::coded::LayerProduct;
use super::layers::{Layer, LayerPart, layers};
use super::rewrite::{Prepared, prepare};
use crate::Evidence;
use overdrive_ir::{
    Builder, Compare, DType, Expr, Graph, GraphError, Prim, TensorType, Value, gradients,
};
use std::collections::BTreeMap;

/// The loss of a model against the float one, in its outputs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OutputLoss {
    /// Cross entropy of the logits `y`, in nats a row. `H` is `diag(p) - p pᵀ` of the
    /// probabilities p.
    CrossEntropy,
    /// Squared error of `y`, which has one output a row. `H` is 2.
    SquaredError,
    /// 1 - the cosine between the float outputs and those of the model, a sample of an output being
    /// a row. `H` is `(1 - ŷ ŷᵀ) / |y|²`.
    Cosine,
}

/// Layers that have one mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerGroup {
    /// Its name.
    pub name: String,
    /// Names of its layers.
    pub layers: Vec<String>,
}

/// The subject of an estimate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EstimatedPart {
    /// The group.
    pub group: String,
    /// Its mode.
    pub mode: String,
    /// Bytes of its codes, scales and zero points.
    pub bytes: u64,
}

/// A graph that estimates losses.
#[derive(Clone, Debug)]
pub struct LossEstimates {
    /// Inputs: those of the model, and `seed` u64[] of the signs. Output: `lost`, f32, a draw for
    /// each of [`Self::parts`]; the estimate is the mean over draws. No output without parts.
    pub graph: Graph,
    /// Every group in every mode that all of its layers can take.
    pub parts: Vec<EstimatedPart>,
}

/// Estimates for a bound graph. Codes are those that [`quantize`](crate::quantize) gives on the
/// same evidence.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what a scheme needs. Also when the graph has
/// not the output that the loss is of.
pub fn estimate_losses(
    (graph, loss): (&Graph, OutputLoss),
    groups: &[LayerGroup],
    modes: &[(&str, Quantization)],
    evidence: &Evidence,
) -> Result<LossEstimates, GraphError> {
    let (found, _) = layers(graph)?;
    let all: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    let chosen: Vec<&str> =
        groups.iter().flat_map(|group| &group.layers).map(String::as_str).collect();
    let products = found.iter().filter(|layer| chosen.contains(&layer.name.as_str()));
    let products = products.flat_map(|layer| &layer.parts);
    let results: Vec<Value> = products.map(|part| graph.node(part.node).results[0]).collect();
    let b = Builder::new(graph.name());
    let map = b.append(graph)?;
    let seed = b.input("seed", TensorType::scalar(DType::U64));
    let judged = directions((graph, &map), loss, seed)?;
    let gradients = gradients(&b, graph, &map, &judged.directions, &results);
    let known: BTreeMap<Value, Expr<'_>> =
        results.into_iter().zip(gradients).filter_map(|(v, c)| Some((v, c?))).collect();
    let (mut parts, mut lost) = (Vec::new(), Vec::new());
    for (mode, meant) in modes {
        let (prepared, _) = prepare(graph, &meant.only(&chosen, &all), evidence)?;
        for group in groups {
            let in_mode = |name: &String| {
                let coded = prepared.iter().find(|one| one.layer.name == *name);
                let half =
                    || Some((meant.of(name)?.half()?, found.iter().find(|l| l.name == *name)?));
                coded
                    .map(LayerInMode::Coded)
                    .or_else(|| half().map(|(format, layer)| LayerInMode::Half { layer, format }))
            };
            let Some(layers) = group.layers.iter().map(in_mode).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let changes = layers
                .iter()
                .flat_map(|one| changes((graph, &map), (one, mode), (&known, judged.samples)));
            // A group that no output depends on has no gradient, and nothing to lose.
            let change = changes.reduce(|sum, more| sum + more);
            let change = change.unwrap_or_else(|| b.full(DType::F32, [judged.samples], 0.0));
            let draw = (change * change).sum(&[0]) * (0.5 / judged.rows as f64);
            lost.push(draw.reshape([1usize]));
            let bytes = layers.iter().map(LayerInMode::bytes).sum::<usize>() as u64;
            parts.push(EstimatedPart { group: group.name.clone(), mode: (*mode).into(), bytes });
        }
    }
    if !lost.is_empty() {
        b.output("lost", b.concat(&lost, 0));
    }
    Ok(LossEstimates { graph: b.finish()?, parts })
}

/// A layer in a mode.
enum LayerInMode<'a> {
    /// With codes.
    Coded(&'a Prepared),
    /// With operands of its products in this format.
    Half { layer: &'a Layer, format: DType },
}

impl LayerInMode<'_> {
    /// Bytes of its weight.
    fn bytes(&self) -> usize {
        match self {
            Self::Coded(prepared) => prepared.encoded.bytes().iter().sum(),
            Self::Half { layer, format } => layer.shape[0] * layer.shape[1] * format.bits() / 8,
        }
    }

    /// Its products.
    fn parts(&self) -> &[LayerPart] {
        match self {
            Self::Coded(prepared) => &prepared.layer.parts,
            Self::Half { layer, .. } => &layer.parts,
        }
    }
}

/// `cᵀ δ` of each sample, for each product of a layer that has a gradient.
fn changes<'b>(
    (graph, map): (&Graph, &[Expr<'b>]),
    (layer, mode): (&LayerInMode<'_>, &str),
    (gradients, samples): (&BTreeMap<Value, Expr<'b>>, usize),
) -> Vec<Expr<'b>> {
    // The codes of every mode stand beside the weight, each by a name of its own.
    let named = |prepared: &Prepared| {
        let mut prepared = prepared.clone();
        prepared.layer.name = format!("{}.{mode}", prepared.layer.name);
        prepared.layer.weight = format!("{}.{mode}", prepared.layer.weight);
        prepared
    };
    let prepared = match layer {
        LayerInMode::Coded(prepared) => Ok(named(prepared)),
        LayerInMode::Half { format, .. } => Err(*format),
    };
    let coded = prepared.as_ref().map(Prepared::coded);
    let of = |at: Value| map[at.0 as usize];
    let change = |part: &LayerPart| {
        let node = graph.node(part.node);
        let gradient = *gradients.get(&node.results[0])?;
        let (x, y) = (of(node.operands[0]), of(node.results[0]));
        let bias = node.operands.get(2).map(|bias| of(*bias));
        let _scope = y.builder().scope_path(&node.scope);
        let coded = match &coded {
            Ok(coded) => coded.build(LayerProduct { node, rows: &part.rows, x, bias }),
            Err(format) => {
                let narrow = node.operands.iter().map(|v| of(*v).convert(**format));
                let operands: Vec<Expr<'b>> = narrow.collect();
                y.builder().op1(node.op.clone(), &operands).convert(DType::F32)
            }
        };
        let product = ((coded - y) * gradient).convert(DType::F32);
        // Samples come first, by themselves or joined with their rows.
        let elements: usize = product.sizes().iter().product();
        let by_sample = match elements.is_multiple_of(samples) {
            true => product.reshape([samples, elements / samples]).sum(&[1]),
            false => product.reshape([1, elements]).sum(&[1]),
        };
        Some(by_sample)
    };
    layer.parts().iter().filter_map(change).collect()
}

/// The outputs that are judged.
struct JudgedOutputs<'b> {
    /// `A r` for each.
    directions: Vec<(Value, Expr<'b>)>,
    /// Rows of all together.
    rows: usize,
    /// Samples of a batch.
    samples: usize,
}

fn directions<'b>(
    (graph, map): (&Graph, &[Expr<'b>]),
    loss: OutputLoss,
    seed: Expr<'b>,
) -> Result<JudgedOutputs<'b>, GraphError> {
    let is_judged = |name: &str| loss == OutputLoss::Cosine || name == "y";
    let floats = graph.outputs().iter().filter(|port| graph.ty(port.value).dtype.is_float());
    let (mut directions, mut rows, mut samples) = (Vec::new(), 0, 1);
    for port in floats.filter(|port| is_judged(&port.name)) {
        let y = map[port.value.0 as usize];
        let (sizes, elements) = (y.sizes(), y.sizes().iter().product::<usize>());
        samples = sizes.first().copied().unwrap_or(1).max(1);
        let width = match loss {
            OutputLoss::Cosine => elements / samples,
            OutputLoss::CrossEntropy | OutputLoss::SquaredError => {
                sizes.last().copied().unwrap_or(1)
            }
        };
        let width = width.max(1);
        let y = y.convert(DType::F32).reshape([elements / width, width]);
        let r = signs(y, seed);
        let along = |a: Expr<'b>, b: Expr<'b>| (a * b).sum(&[1]).reshape([elements / width, 1]);
        let direction = match loss {
            OutputLoss::CrossEntropy => {
                let p = y.softmax(1);
                let root = p.sqrt();
                root * r - p * along(root, r)
            }
            OutputLoss::SquaredError => r * 2f64.sqrt(),
            OutputLoss::Cosine => {
                let square = along(y, y);
                // Zeros have no direction that could change.
                let is_any = square.compare(Compare::Gt, square.constant(0.0));
                let inverse = is_any.select(square.rsqrt(), square.constant(0.0));
                let unit = y * inverse;
                (r - unit * along(unit, r)) * inverse
            }
        };
        let ty = graph.ty(port.value);
        directions.push((port.value, direction.reshape(ty.shape.clone()).convert(ty.dtype)));
        rows += (elements / width).max(1);
    }
    if directions.is_empty() {
        let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
        return Err(GraphError {
            op: "estimate_losses".into(),
            scope: graph.name().into(),
            expected: "a float output `y`, or for a cosine any".into(),
            found: format!("outputs {names:?}"),
            remedy: "name the output that is judged `y`".into(),
        });
    }
    Ok(JudgedOutputs { directions, rows, samples })
}

/// Random signs of the shape of x.
fn signs<'b>(x: Expr<'b>, seed: Expr<'b>) -> Expr<'b> {
    let b = x.builder();
    let bits = b.op1(Prim::RandomBits { shape: x.shape(), site: b.site() }, &[seed]);
    let is_high = bits.compare(Compare::Ge, bits.constant(2f64.powi(31)));
    is_high.select(x.constant(1.0), x.constant(-1.0))
}
