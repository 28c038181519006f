//! The pass itself: weights to codes, and the nodes that read them.

use super::layers::{Layer, LayerKind, Skipped, layers};
use super::{Quantization, Rounding, Scheme, activation_range, gptq, hqq, learned};
use crate::{Evidence, Statistic};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::quantized_linear::{Activations, QuantizedLinear, Weights};
use overdrive_ir::{
    BlockFormat, Builder, DType, Encoded, Expr, Graph, GraphError, Grid, Init, Mismatch, Node, Tensor,
};
use std::collections::BTreeMap;

/// A quantized graph and what became of each layer.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The graph; its states begin as codes and scales.
    pub graph: Graph,
    /// Layers that were quantized.
    pub layers: Vec<QuantizedLayer>,
    /// Layers that were not, and why.
    pub skipped: Vec<Skipped>,
    /// Layers that were quantized by a simpler method than was asked for, and why.
    pub simplified: Vec<Skipped>,
}

/// What became of a layer.
#[derive(Clone, PartialEq, Debug)]
pub struct QuantizedLayer {
    /// Its name.
    pub name: String,
    /// Its formats; `None` where its weights are only pruned.
    pub scheme: Option<Scheme>,
    /// Bytes of its weight before.
    pub float_bytes: u64,
    /// Bytes of its codes.
    pub code_bytes: u64,
    /// Bytes of its scales and zero points, and of the mask of a pruned weight.
    pub scale_bytes: u64,
    /// Root of the mean square of the weights' error, relative to that of the weights.
    pub weight_error: f64,
}

/// A layer with its new states.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) layer: Layer,
    pub(super) scheme: Scheme,
    pub(super) encoded: Encoded,
    /// Scale and zero point of static activations.
    pub(super) input: Option<(Grid, DType)>,
}

/// The layers that get a scheme, by node; those that do not, and those that are rounded more simply than it says.
type Layers = (BTreeMap<u32, Prepared>, [Vec<Skipped>; 2]);

/// Quantizes every layer that `quantization` gives a scheme.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what a scheme needs.
pub fn quantize(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Quantized, GraphError> {
    if quantization.is_learned() {
        return Err(GraphError {
            op: "quantize".into(),
            scope: graph.name().to_owned(),
            expected: "steps that training has learnt".into(),
            found: "a float model".into(),
            remedy: "train it with `learn` on data first".into(),
        });
    }
    let (layers, remarks) = prepare(graph, quantization, evidence)?;
    conclude(graph, layers, remarks)
}

/// Rounds the weights of every layer that gets a scheme, and finds the range of its activations.
pub(super) fn prepare(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Layers, GraphError> {
    let (found, mut skipped) = layers(graph)?;
    let mut prepared = BTreeMap::new();
    let mut simplified = Vec::new();
    for layer in found {
        let Some(mut scheme) = quantization.of(&layer.name) else {
            skipped.push(Skipped { layer: layer.name, reason: "left as it is by the recipe".to_owned() });
            continue;
        };
        if scheme.weights.element == DType::F32 {
            // Its codes would be the weights themselves.
            continue;
        }
        if let Some(reason) = cannot_take(&layer, &scheme) {
            skipped.push(Skipped { layer: layer.name, reason });
            continue;
        }
        if let Some(reason) = cannot_round(&layer, &scheme) {
            simplified.push(Skipped { layer: layer.name.clone(), reason });
            scheme.rounding = Rounding::Nearest;
        }
        let refused = |m: Mismatch| refused(&layer, m);
        let rows = layer.rows(graph);
        let encoded = round(&layer, &rows, &scheme, evidence).map_err(refused)?;
        let input = match scheme.activations {
            Activations::Static(element) => {
                let grid = input_grid(&layer, element, quantization, evidence).map_err(refused)?;
                Some((grid, element))
            }
            _ => None,
        };
        prepared.insert(layer.node.0, Prepared { layer, scheme, encoded, input });
    }
    Ok((prepared, [skipped, simplified]))
}

/// The graph of codes, and what became of each layer of `graph`.
pub(super) fn conclude(
    graph: &Graph,
    layers: BTreeMap<u32, Prepared>,
    [skipped, simplified]: [Vec<Skipped>; 2],
) -> Result<Quantized, GraphError> {
    let report = |prepared: &Prepared| {
        let [codes, beside] = prepared.encoded.bytes();
        QuantizedLayer {
            name: prepared.layer.name.clone(),
            scheme: Some(prepared.scheme),
            float_bytes: graph.ty(prepared.layer.state(graph).value).bytes() as u64,
            code_bytes: codes as u64,
            scale_bytes: beside as u64,
            weight_error: relative_error(&prepared.layer.rows(graph), &prepared.encoded.decode()),
        }
    };
    let reports = layers.values().map(report).collect();
    let quantized = rebuild(graph, &layers, &|prepared, node, x, bias| prepared.build(node, x, bias))?;
    Ok(Quantized { graph: quantized, layers: reports, skipped, simplified })
}

fn refused(layer: &Layer, mismatch: Mismatch) -> GraphError {
    let Mismatch { expected, found, remedy } = mismatch;
    GraphError { op: "quantize".into(), scope: layer.weight.clone(), expected, found, remedy }
}

/// Why a layer cannot take a scheme, if it cannot.
fn cannot_take(layer: &Layer, scheme: &Scheme) -> Option<String> {
    if let (LayerKind::Convolution, Activations::Blocks(..)) = (layer.kind, scheme.activations) {
        return Some("blocks of its activations would cross the window of the convolution".to_owned());
    }
    let refused = scheme.weights.block.counts(layer.shape).err()?;
    Some(format!("expected {}, found {}", refused.expected, refused.found))
}

/// Why the weights of a layer cannot be rounded as a scheme says, if they cannot.
fn cannot_round(layer: &Layer, scheme: &Scheme) -> Option<String> {
    let grouped = layer.groups > 1 && scheme.rounding == Rounding::Gptq;
    grouped.then(|| {
        let groups = layer.groups;
        format!("rounded to the nearest: each of the {groups} groups of its channels has inputs of its own")
    })
}

fn round(layer: &Layer, rows: &[f64], scheme: &Scheme, evidence: &Evidence) -> Result<Encoded, Mismatch> {
    let format = &scheme.weights;
    // Checks values and shape for every method.
    let nearest = format.encode(rows, layer.shape)?;
    match scheme.rounding {
        Rounding::Nearest => Ok(nearest),
        Rounding::Gptq => {
            Ok(gptq::gptq(rows, layer.shape, format, needed(layer, Statistic::Gram, evidence)?))
        }
        Rounding::Hqq => Ok(hqq::hqq(rows, layer.shape, format)),
        Rounding::Learned => Ok(learned::start(rows, layer.shape, format)),
    }
}

fn needed<'e>(layer: &Layer, statistic: Statistic, evidence: &'e Evidence) -> Result<&'e [f64], Mismatch> {
    evidence.get(&layer.site, statistic).ok_or_else(|| {
        let known = evidence.sites.len();
        Mismatch::new(
            format!("evidence `{}` of {}", statistic.name(), layer.site),
            format!("evidence of {known} sites"),
        )
        .remedy("calibrate this very graph on data first")
    })
}

fn input_grid(
    layer: &Layer,
    element: DType,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Grid, Mismatch> {
    let seen = needed(layer, Statistic::Range, evidence)?;
    let histogram = evidence.get(&layer.site, Statistic::Histogram);
    let range = activation_range(quantization.range, element, [seen[0], seen[1]], histogram)?;
    let format = BlockFormat::plain(element, overdrive_ir::Block::Tensor);
    let format = if element.is_int() { format.asymmetric() } else { format };
    Ok(format.grid(range, 1.0))
}

fn relative_error(values: &[f64], rounded: &[f64]) -> f64 {
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>();
    let error = squares(&mut values.iter().zip(rounded).map(|(a, b)| a - b));
    (error / squares(&mut values.iter().copied()).max(f64::MIN_POSITIVE)).sqrt()
}

/// A layer on x, with the bias that its node had.
type Build<'a> = dyn for<'b> Fn(&Prepared, &Node, Expr<'b>, Option<Expr<'b>>) -> Expr<'b> + 'a;

/// The graph with what `build` makes of the prepared layers in place of the old ones.
pub(super) fn rebuild(
    graph: &Graph,
    prepared: &BTreeMap<u32, Prepared>,
    build: &Build<'_>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    for port in graph.inputs() {
        map[port.value.0 as usize] = Some(b.input(&port.name, graph.ty(port.value).clone()));
    }
    let gone = |name: &str| prepared.values().any(|p| p.layer.weight == name);
    for state in graph.states().iter().filter(|s| !gone(&s.name)) {
        let ty = graph.ty(state.value).clone();
        map[state.value.0 as usize] = Some(b.state_named(&state.name, ty, state.init.clone()));
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let get =
            |operand: usize| map[node.operands[operand].0 as usize].expect("operands precede their node");
        let results = match prepared.get(&(index as u32)) {
            Some(layer) => {
                let bias = (node.operands.len() == 3).then(|| get(2));
                let _scope = b.scope_path(&node.scope);
                vec![build(layer, node, get(0), bias)]
            }
            None => b.again(node, &(0..node.operands.len()).map(get).collect::<Vec<_>>()),
        };
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("only weights are gone"));
    b.finish()
}

impl Prepared {
    /// The state of the scales of its weight.
    pub(super) fn weight_step(&self) -> String {
        format!("{}_scale", self.layer.weight)
    }

    /// The product of its codes.
    pub(super) fn product(&self) -> QuantizedLinear {
        let weights = match (self.encoded.zero.is_some(), self.encoded.tensor_scale.is_some()) {
            (true, _) => Weights::Asymmetric,
            (false, true) => Weights::TwoLevel,
            (false, false) => Weights::Symmetric,
        };
        QuantizedLinear { weights, activations: self.scheme.activations }
    }

    /// The layer on x.
    fn build<'b>(&self, node: &Node, x: Expr<'b>, bias: Option<Expr<'b>>) -> Expr<'b> {
        let b = x.builder();
        let state = |name: String, tensor: &Tensor| {
            b.state_named(&name, tensor.ty().clone(), Init::Value(tensor.clone()))
        };
        let weight = &self.layer.weight;
        let Encoded { codes, scale, zero, tensor_scale } = &self.encoded;
        let codes = state(weight.clone(), codes);
        let scale = state(self.weight_step(), scale);
        let zero = zero.as_ref().map(|zero| state(format!("{weight}_zero_point"), zero));
        let tensor_scale = tensor_scale.as_ref().map(|scale| state(format!("{weight}_tensor_scale"), scale));
        let input = self.input.map(|(grid, element)| {
            let scale = state(self.layer.input("scale"), &Tensor::scalar(DType::F32, grid.scale));
            let zero = Tensor::scalar(element, grid.zero);
            let zero = element.is_int().then(|| state(self.layer.input("zero_point"), &zero));
            (scale, zero)
        });
        match self.layer.kind {
            LayerKind::Linear => {
                let beside = [Some(codes), Some(scale), zero, tensor_scale];
                let of_input = input.into_iter().flat_map(|(scale, zero)| [Some(scale), zero]);
                let operands: Vec<Expr<'b>> = beside.into_iter().chain(of_input).flatten().collect();
                let y = x.quantized_linear(self.product(), &operands);
                bias.map_or(y, |bias| y + bias)
            }
            LayerKind::Convolution => {
                let values = codes.dequantize(scale, zero);
                let values = tensor_scale.map_or(values, |scale| values * scale);
                let geometry = node.op.composite::<Conv2d>().expect("a convolution layer is a conv2d");
                self.rounded(x, input).conv2d(
                    values.reshape(self.layer.sizes.clone()),
                    bias,
                    geometry.clone(),
                )
            }
        }
    }

    /// x as its codes stand for it: a scale for each row of a product, for each sample of a convolution, or the static one.
    pub(super) fn rounded<'b>(&self, x: Expr<'b>, input: Option<(Expr<'b>, Option<Expr<'b>>)>) -> Expr<'b> {
        let ones = vec![1usize; x.rank()];
        match (self.scheme.activations, input) {
            (Activations::Static(element), Some((scale, zero))) => {
                let scale = scale.reshape(ones.clone());
                let zero = zero.map(|zero| zero.reshape(ones));
                x.quantize(scale, zero, element).dequantize(scale, zero)
            }
            (Activations::Dynamic(element), _) => {
                let apart = |axis: usize| match self.layer.kind {
                    LayerKind::Linear => axis + 1 < x.rank(),
                    LayerKind::Convolution => axis == 0,
                };
                let block: Vec<Option<usize>> = (0..x.rank()).map(|axis| apart(axis).then_some(1)).collect();
                let scale = x.block_scale(&block, element, overdrive_ir::ops::block_scale::ScaleFormat::Wide);
                x.quantize(scale, None, element).dequantize(scale, None)
            }
            _ => x,
        }
    }
}
