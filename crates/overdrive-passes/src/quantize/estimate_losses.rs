//! `estimate_losses` gives a graph that estimates what each group of layers loses in each mode,
//! from gradients of the float model alone.
//!
//! A change `δ` of a layer changes the loss of a row by `½ δᵀ F δ`. `F` is the Fisher matrix of
//! the float model, the mean of `Jᵀ H J` over rows: `J` is the Jacobian of the outputs, `H` the
//! curvature of the loss in them. The term of first order is left out. With labels of the model's
//! own distribution it is 0, and the gradient that a trained model has left is noise of its
//! samples.
//!
//! With random signs `r` over all outputs and `A Aᵀ = H`, `g = Jᵀ A r` has the mean square `F`. One
//! backward pass over a whole batch gives a draw of `g`, since signs of different rows cancel. With
//! `R` rows, `W` for weights `[N, K]` and `x` for the value that the group reads, a draw of the
//! estimate is
//!
//! ```text
//! (Σ_n (Σ_k g_W[n,k] ΔW[n,k])² + Σ_i (g_x[i] Δx[i])²) / 2R
//! ```
//!
//! `ΔW` is what the codes stand for, less the weight: methods that let errors of a row cancel, as
//! GPTQ does, are credited for it. Errors of different outputs count as independent. `Δx` is the
//! rounding of the activations, whose elements count as independent too. `g_x` goes through the
//! layers of the group alone.
//!
//! Sources: LeCun et al., "Optimal brain damage", NIPS 1989 (a change of weights by second
//! derivatives, none of first order at a minimum); Kim et al., "SqueezeLLM", arXiv:2306.07629
//! (Fisher as these derivatives, for rounded weights); Dong et al., "HAWQ-V2", arXiv:1911.03852
//! (random signs; layers ranked by curvature and rounding error). Squares of gradients of a whole
//! batch: Liu et al., "Sophia", arXiv:2305.14342, section 2.3. Invariant: estimates change neither
//! the model nor its states.

use super::Quantization;
use super::coded::rounded;
use super::held::{KAxis, LayerKind};
use super::layers::{Layer, layers};
use super::rewrite::{Prepared, prepare};
use crate::Evidence;
use overdrive_ir::ops::QuantizeRows;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    Builder, Compare, DType, Expr, Graph, GraphError, Init, Prim, Tensor, TensorType, Value,
    gradients,
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

/// What an estimate is of.
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
/// same evidence, each layer rounded beside float ones.
///
/// # Errors
/// When a weight is not finite, the evidence lacks what a scheme needs, the graph has not the
/// output that the loss is of, or an op has no gradient.
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
    let members = |group: &LayerGroup| -> Vec<&Layer> {
        group.layers.iter().filter_map(|name| found.iter().find(|l| l.name == *name)).collect()
    };
    let members: Vec<Vec<&Layer>> = groups.iter().map(members).collect();
    let (opened, entries) = opened(graph, &members)?;
    let weights = opened.states().iter().map(|state| (state.name.as_str(), state.value));
    let weights: Vec<(&str, Value)> = weights.filter(|(name, _)| is_of(&members, name)).collect();
    let b = Builder::new(graph.name());
    let map = b.append(&opened)?;
    let seed = b.input("seed", TensorType::scalar(DType::U64));
    let (seeds, rows) = directions((&opened, &map), loss, seed)?;
    let wrt: Vec<Value> =
        weights.iter().map(|(_, value)| *value).chain(entries.iter().map(|e| e.zeros)).collect();
    let found = gradients(&b, &opened, &map, &seeds, &wrt);
    let (of_weights, of_inputs) = found.split_at(weights.len());
    let gradient_of = |coded: &Prepared| {
        let at = weights.iter().position(|(name, _)| *name == coded.layer.weight)?;
        of_weights[at]
    };
    let (mut parts, mut lost) = (Vec::new(), Vec::new());
    for (mode, meant) in modes {
        let (prepared, _) = prepare(graph, &meant.only(&chosen, &all), evidence)?;
        for (at, group) in groups.iter().enumerate() {
            let coded = |name: &String| prepared.iter().find(|one| one.layer.name == *name);
            let Some(coded) = group.layers.iter().map(coded).collect::<Option<Vec<_>>>() else {
                continue;
            };
            // A layer that no output depends on has no gradient, and nothing to lose.
            let weights = coded
                .iter()
                .filter_map(|one| Some(by_weights((graph, mode), one, gradient_of(one)?)));
            let entries = entries.iter().zip(of_inputs).filter(|(entry, _)| entry.group == at);
            let inputs = entries.filter_map(|(entry, gradient)| {
                by_inputs(coded[entry.member], map[entry.read.0 as usize], (*gradient)?)
            });
            let sum = weights.chain(inputs).reduce(|sum, more| sum + more);
            let sum = sum.unwrap_or_else(|| b.full(DType::F32, [0usize; 0], 0.0));
            lost.push((sum * (0.5 / rows as f64)).reshape([1usize]));
            let bytes = coded.iter().flat_map(|one| one.encoded.bytes()).sum::<usize>() as u64;
            parts.push(EstimatedPart { group: group.name.clone(), mode: (*mode).into(), bytes });
        }
    }
    if !lost.is_empty() {
        b.output("lost", b.concat(&lost, 0));
    }
    Ok(LossEstimates { graph: b.finish()?, parts })
}

fn is_of(members: &[Vec<&Layer>], state: &str) -> bool {
    members.iter().flatten().any(|layer| layer.weight == state)
}

/// A value that layers of a group read.
struct Entry {
    group: usize,
    /// The first of these layers in the group.
    member: usize,
    read: Value,
    /// Zeros that are added to the value for this group alone, so that their gradient goes through
    /// nothing else.
    zeros: Value,
}

/// The graph with zeros added to what each group reads.
fn opened(graph: &Graph, groups: &[Vec<&Layer>]) -> Result<(Graph, Vec<Entry>), GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    b.declare(graph).into_iter().for_each(|(v, expr)| map[v.0 as usize] = Some(expr));
    let mut places = BTreeMap::new();
    for (group, layers) in groups.iter().enumerate() {
        for (member, layer) in layers.iter().enumerate() {
            places.extend(layer.parts.iter().map(|part| (part.node.0, (group, member))));
        }
    }
    let mut entries: Vec<(Entry, Expr<'_>)> = Vec::new();
    for (at, node) in graph.nodes().iter().enumerate() {
        let known = |v: &Value| map[v.0 as usize].expect("values are computed in order");
        let mut operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
        if let Some(&(group, member)) = places.get(&(at as u32)) {
            let x = operands[0];
            let is_it = |(entry, _): &&(Entry, _)| (entry.group, entry.read) == (group, x.value());
            operands[0] = match entries.iter().find(is_it) {
                Some((_, inside)) => *inside,
                None => {
                    let zeros = b.full(x.dtype(), x.shape(), 0.0);
                    let (read, inside) = (x.value(), x + zeros);
                    entries.push((Entry { group, member, read, zeros: zeros.value() }, inside));
                    inside
                }
            };
        }
        let results = b.again(node, &operands);
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    graph.outputs().iter().for_each(|port| {
        b.output(&port.name, map[port.value.0 as usize].expect("outputs were computed"));
    });
    let entries = entries.into_iter().map(|(entry, _)| entry).collect();
    Ok((b.finish()?, entries))
}

/// Cotangents of outputs.
type Directions<'b> = Vec<(Value, Expr<'b>)>;

/// `A r` for each output that the loss is of, and the number of rows.
fn directions<'b>(
    (graph, map): (&Graph, &[Expr<'b>]),
    loss: OutputLoss,
    seed: Expr<'b>,
) -> Result<(Directions<'b>, usize), GraphError> {
    let is_judged = |name: &str| loss == OutputLoss::Cosine || name == "y";
    let floats = graph.outputs().iter().filter(|port| graph.ty(port.value).dtype.is_float());
    let (mut found, mut rows) = (Vec::new(), 0);
    for port in floats.filter(|port| is_judged(&port.name)) {
        let y = map[port.value.0 as usize];
        let (sizes, elements) = (y.sizes(), y.sizes().iter().product::<usize>().max(1));
        let count = match loss {
            OutputLoss::Cosine => sizes.first().copied().unwrap_or(1).max(1),
            OutputLoss::CrossEntropy | OutputLoss::SquaredError => {
                elements / sizes.last().copied().unwrap_or(1).max(1)
            }
        };
        let y = y.convert(DType::F32).reshape([count, elements / count]);
        let r = signs(y, seed);
        let along = |a: Expr<'b>, b: Expr<'b>| (a * b).sum(&[1]).reshape([count, 1]);
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
        found.push((port.value, direction.reshape(ty.shape.clone()).convert(ty.dtype)));
        rows += count;
    }
    if found.is_empty() {
        let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
        return Err(GraphError {
            op: "estimate_losses".into(),
            scope: graph.name().into(),
            expected: "a float output `y`, or for a cosine any".into(),
            found: format!("outputs {names:?}"),
            remedy: "name the output that is judged `y`".into(),
        });
    }
    Ok((found, rows))
}

/// Random signs of the shape of x.
fn signs<'b>(x: Expr<'b>, seed: Expr<'b>) -> Expr<'b> {
    let b = x.builder();
    let bits = b.op1(Prim::RandomBits { shape: x.shape(), site: b.site() }, &[seed]);
    let is_high = bits.compare(Compare::Ge, bits.constant(2f64.powi(31)));
    is_high.select(x.constant(1.0), x.constant(-1.0))
}

/// The square of what the change of a weight changes, summed over outputs.
fn by_weights<'b>((graph, mode): (&Graph, &str), coded: &Prepared, gradient: Expr<'b>) -> Expr<'b> {
    let layer = &coded.layer;
    let change: Vec<f64> =
        layer.rows(graph).iter().zip(coded.encoded.decode()).map(|(w, coded)| coded - w).collect();
    let change = Tensor::from_f64(DType::F32, layer.held.sizes.clone(), &layer.stored(&change));
    let name = format!("{}.change.{mode}", layer.weight);
    let change = gradient.builder().state_named(&name, change.ty().clone(), Init::Value(change));
    let summed: Vec<usize> = match (layer.kind, layer.held.order) {
        (LayerKind::Linear, KAxis::InputMajor) => vec![0],
        (LayerKind::Linear, KAxis::OutputMajor) => vec![1],
        (LayerKind::Convolution, _) => (1..gradient.rank()).collect(),
    };
    total_of_squares((gradient * change).sum(&summed))
}

/// The square of what the rounding of a layer's inputs changes, if its scheme rounds them.
fn by_inputs<'b>(coded: &Prepared, x: Expr<'b>, gradient: Expr<'b>) -> Option<Expr<'b>> {
    let (layer, scheme) = (&coded.layer, &coded.scheme);
    let known = match scheme.activations {
        Activations::Float => return None,
        Activations::Blocks(element, scale) => {
            let counts = scheme.weights.block.counts(layer.shape);
            let counts = counts.expect("the layer was prepared with this format");
            let block = Some(layer.shape[1] / counts[1]);
            let (numbers, rows) = x.quantize_rows(QuantizeRows { block, element, scale });
            let numbers = numbers.convert(x.dtype());
            rows.map_or(numbers, |rows| numbers * rows.convert(x.dtype()))
        }
        Activations::Dynamic(_) | Activations::Static(_) => {
            let input = coded.input.map(|(grid, element)| {
                let scalar = |dtype, value| x.builder().constant(Tensor::scalar(dtype, value));
                let zero = element.is_int().then(|| scalar(element, grid.zero));
                (scalar(DType::F32, grid.scale), zero)
            });
            rounded((layer.kind, scheme), x, input).convert(x.dtype())
        }
    };
    Some(total_of_squares(gradient * (known - x)))
}

fn total_of_squares(x: Expr<'_>) -> Expr<'_> {
    let x = x.convert(DType::F32);
    (x * x).sum(&(0..x.rank()).collect::<Vec<_>>())
}
