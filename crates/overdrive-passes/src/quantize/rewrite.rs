//! Weights of layers to codes, and the nodes that read them.

use super::coded::{Coded, LayerProduct};
use super::gptq::{ColumnInputs, gptq};
use super::held::LayerKind;
use super::layers::{Layer, Skipped, layers, relative_error};
use super::least_error::least_error;
use super::quantized::{Quantized, QuantizedLayer};
use super::rotation::smaller as smaller_rotation;
use super::{Additions, Quantization, Rounding, Scheme, activation_range, hqq};
use crate::on_cores::on_cores;
use crate::{Evidence, Statistic};
use overdrive_ir::ops::Embedding;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    BlockFormat, Builder, DType, Encoded, Expr, Granularity, Graph, GraphError, Grid, Init,
    Mismatch, Tensor, Value,
};
use std::collections::{BTreeMap, BTreeSet};

/// A layer with its new states.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) layer: Layer,
    pub(super) scheme: Scheme,
    pub(super) encoded: Encoded,
    /// The weights that were rounded to the codes, `[N, K]`, if more is to become of them.
    pub(super) meant: Option<Vec<f64>>,
    /// Scale and zero point of static activations.
    pub(super) input: Option<(Grid, DType)>,
}

/// The layers that get a scheme; those that do not, and those that are rounded more simply than it
/// says.
type Layers = (Vec<Prepared>, [Vec<Skipped>; 2]);

/// Rounds the weights of every layer that gets a scheme, and finds the range of its activations.
pub(super) fn prepare(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Layers, GraphError> {
    let (found, mut skipped) = layers(graph)?;
    let mut accepted = Vec::new();
    let mut simplified = Vec::new();
    for layer in found {
        let Some(mut scheme) = quantization.of(&layer.name) else {
            skipped.push(Skipped {
                layer: layer.name,
                reason: "left as it is by the recipe".to_owned(),
            });
            continue;
        };
        if scheme.weights.element == DType::F32 || scheme.half().is_some() {
            // Its codes would be the weights themselves, or `halve` rounds them.
            continue;
        }
        if quantization.additions == Additions::None
            && let Some((block, reason)) = smaller_groups(&layer, &scheme)
        {
            scheme.weights.block = block;
            simplified.push(Skipped { layer: layer.name.clone(), reason });
        }
        if let Some((rotation, reason)) =
            scheme.rotation.and_then(|block| smaller_rotation(&layer, block))
        {
            scheme.rotation = rotation;
            simplified.push(Skipped { layer: layer.name.clone(), reason });
        }
        if let Some(reason) = cannot_take(&layer, &scheme) {
            skipped.push(Skipped { layer: layer.name, reason });
            continue;
        }
        accepted.push((layer, scheme));
    }
    let prepared = rounded(graph, accepted, quantization, evidence)?;
    Ok((prepared, [skipped, simplified]))
}

/// Layers rounded to their schemes, with the range of their activations.
pub(super) fn rounded(
    graph: &Graph,
    accepted: Vec<(Layer, Scheme)>,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Vec<Prepared>, GraphError> {
    let encoded = round_all(graph, &accepted, evidence)?;
    let mut prepared = Vec::new();
    for ((layer, scheme), (encoded, meant)) in accepted.into_iter().zip(encoded) {
        let refused = |m: Mismatch| refused(&layer, m);
        let input = match scheme.activations {
            Activations::Static(element) => {
                let grid = input_grid(&layer, element, quantization, evidence).map_err(refused)?;
                Some((grid, element))
            }
            _ => None,
        };
        prepared.push(Prepared { layer, scheme, encoded, meant, input });
    }
    Ok(prepared)
}

/// The graph of codes, and what became of each layer of `graph`.
pub(super) fn conclude(
    graph: &Graph,
    layers: Vec<Prepared>,
    [skipped, simplified]: [Vec<Skipped>; 2],
) -> Result<Quantized, GraphError> {
    let report = |prepared: &Prepared| {
        let [codes, beside] = prepared.encoded.bytes();
        let rows = prepared.scheme.rotate(prepared.layer.rows(graph));
        QuantizedLayer {
            name: prepared.layer.name.clone(),
            scheme: Some(prepared.scheme),
            float_bytes: graph.ty(prepared.layer.state(graph).value).bytes() as u64,
            code_bytes: codes as u64,
            scale_bytes: beside as u64,
            weight_error: relative_error(&rows, &prepared.encoded.decode()),
        }
    };
    let weights = |prepared: &Prepared| prepared.layer.shape[0] * prepared.layer.shape[1];
    let reports = on_cores(&layers, weights, report);
    let coded: Vec<_> = layers.iter().map(|prepared| (&prepared.layer, prepared.coded())).collect();
    let quantized = rebuild(graph, &coded, &|coded, product| coded.build(product))?;
    Ok(Quantized { graph: quantized, layers: reports, skipped, simplified })
}

fn refused(layer: &Layer, mismatch: Mismatch) -> GraphError {
    let Mismatch { expected, found, remedy } = mismatch;
    GraphError { op: "quantize".into(), scope: layer.weight.clone(), expected, found, remedy }
}

/// Fewest weights that share a scale: of fewer, scales take more room than a finer format.
const SMALLEST_GROUP: usize = 16;

/// Groups that divide the rows of a layer, and why, where those of the scheme do not; blocks of a
/// format have one size.
fn smaller_groups(layer: &Layer, scheme: &Scheme) -> Option<(Granularity, String)> {
    let Granularity::Group(size) = scheme.weights.block else { return None };
    let k = layer.shape[1];
    if scheme.weights.scale != ScaleFormat::Wide || scheme.weights.block.counts(layer.shape).is_ok()
    {
        return None;
    }
    // Kernels, ours and those of other engines, are made for halves of the usual size.
    let halves = std::iter::successors(Some(size / 2), |size| Some(size / 2));
    let halves = halves.take_while(|size| *size >= SMALLEST_GROUP);
    let smaller =
        halves.chain((SMALLEST_GROUP..size).rev()).find(|size| k.is_multiple_of(*size))?;
    Some((
        Granularity::Group(smaller),
        format!("groups of {smaller}: {size} do not divide its {k} inputs"),
    ))
}

/// Why a layer cannot take a scheme, if it cannot.
fn cannot_take(layer: &Layer, scheme: &Scheme) -> Option<String> {
    if let (LayerKind::Convolution, Activations::Blocks(..)) = (layer.kind, scheme.activations) {
        return Some(
            "blocks of its activations would cross the window of the convolution".to_owned(),
        );
    }
    if let Some(block) = scheme.rotation.filter(|block| !block.is_power_of_two()) {
        return Some(format!("expected a rotation in blocks of a power of two, found {block}"));
    }
    if let (Some(_), Activations::Static(_)) = (scheme.rotation, scheme.activations) {
        return Some("the range of its rotated inputs is not observed".to_owned());
    }
    let refused = scheme.weights.block.counts(layer.shape).err()?;
    Some(format!("expected {}, found {}", refused.expected, refused.found))
}

/// Statistics of inputs for GPTQ. Layers that read one value share them: queries, keys and values,
/// a gate and the layer that it gates.
struct SharedInputs {
    of: Value,
    /// Their rounding, and the rotation of the inputs.
    scheme: (Rounding, Option<usize>),
    /// One for each group of channels.
    inputs: Vec<ColumnInputs>,
}

impl SharedInputs {
    /// That of a layer, which takes the place of the last one where it is another.
    fn of<'f>(
        last: &'f mut Option<Self>,
        (graph, layer): (&Graph, &Layer),
        scheme: &Scheme,
        evidence: &Evidence,
    ) -> Result<&'f [ColumnInputs], Mismatch> {
        let alike = (scheme.rounding, scheme.rotation);
        let of = graph.node(layer.parts[0].node).operands[0];
        // The windows of two convolutions over one value are not the same.
        let kept = last.take().filter(|last| {
            layer.kind == LayerKind::Linear && (last.of, last.scheme) == (of, alike)
        });
        let shared = match kept {
            Some(known) => known,
            None => Self { of, scheme: alike, inputs: Self::read(layer, scheme, evidence)? },
        };
        Ok(&last.insert(shared).inputs)
    }

    /// The statistics of a layer's inputs, by groups of channels.
    fn read(
        layer: &Layer,
        scheme: &Scheme,
        evidence: &Evidence,
    ) -> Result<Vec<ColumnInputs>, Mismatch> {
        let k = layer.shape[1];
        let finite = |statistic| -> Result<_, Mismatch> {
            let sums = needed(layer, statistic, evidence)?;
            match sums.iter().find(|sum| !sum.is_finite()) {
                None => Ok(sums.chunks((k * k).max(1))),
                Some(sum) => {
                    let found = format!("sums of products that are {sum}");
                    Err(Mismatch::new("finite inputs in calibration", found)
                        .remedy("calibrate on samples that the model can take"))
                }
            }
        };
        let rotated = |sums| scheme.rotated_sums(sums, k);
        let inputs = finite(Statistic::Gram)?.map(|gram| ColumnInputs::of(&rotated(gram), k));
        Ok(match scheme.rounding {
            Rounding::Gptaq => {
                let drifts = finite(Statistic::Drift)?;
                inputs.zip(drifts).map(|(inputs, drift)| inputs.drifted(&rotated(drift))).collect()
            }
            _ => inputs.collect(),
        })
    }
}

/// Codes, and the weights that were rounded to them if more is to become of these.
type Rounded = (Encoded, Option<Vec<f64>>);

/// The codes of each layer. GPTQ, whose layers share what it knows of inputs, has threads of its
/// own; all else is rounded layer by layer on all cores.
fn round_all(
    graph: &Graph,
    layers: &[(Layer, Scheme)],
    evidence: &Evidence,
) -> Result<Vec<Rounded>, GraphError> {
    let weights = |(layer, _): &(Layer, Scheme)| layer.shape[0] * layer.shape[1];
    let alone = on_cores(layers, weights, |(layer, scheme)| {
        let alone = !scheme.rounding.reads_inputs();
        alone.then(|| round((graph, layer), scheme, evidence, &mut None))
    });
    let mut shared = None;
    let finish = |((layer, scheme), alone): (&(Layer, Scheme), Option<_>)| {
        let together = || round((graph, layer), scheme, evidence, &mut shared);
        alone.unwrap_or_else(together).map_err(|mismatch| refused(layer, mismatch))
    };
    layers.iter().zip(alone).map(finish).collect()
}

fn round(
    (graph, layer): (&Graph, &Layer),
    scheme: &Scheme,
    evidence: &Evidence,
    shared: &mut Option<SharedInputs>,
) -> Result<Rounded, Mismatch> {
    let (format, rows) = (&scheme.weights, layer.rows(graph));
    format.check(&rows, layer.shape)?;
    let rows = scheme.rotate(rows);
    let encoded = match scheme.rounding {
        Rounding::Nearest => format.encode(&rows, layer.shape)?,
        Rounding::Gptq | Rounding::Gptaq | Rounding::AutoRound => {
            let inputs = SharedInputs::of(shared, (graph, layer), scheme, evidence)?;
            let (encoded, meant) = gptq(rows, layer.shape, format, inputs);
            let descends = scheme.rounding == Rounding::AutoRound;
            return Ok((encoded, descends.then_some(meant)));
        }
        Rounding::Hqq => hqq::hqq(&rows, layer.shape, format),
        Rounding::Learned => least_error(&rows, layer.shape, format),
    };
    Ok((encoded, None))
}

fn needed<'e>(
    layer: &Layer,
    statistic: Statistic,
    evidence: &'e Evidence,
) -> Result<&'e [f64], Mismatch> {
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
    let format = BlockFormat::plain(element, overdrive_ir::Granularity::Tensor);
    let format = if element.is_int() { format.asymmetric() } else { format };
    Ok(format.grid(range, 1.0))
}

/// Builds the replacement of a product of a layer, from the `T` of that layer.
type BuildProduct<'a, T> = dyn for<'b> Fn(&T, LayerProduct<'b, '_>) -> Expr<'b> + 'a;

/// The graph with these layers replaced by the results of `build`.
pub(super) fn rebuild<T>(
    graph: &Graph,
    layers: &[(&Layer, T)],
    build: &BuildProduct<'_, T>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    for port in graph.inputs() {
        map[port.value.0 as usize] = Some(b.input(&port.name, graph.ty(port.value).clone()));
    }
    let gone: BTreeSet<&str> = layers.iter().map(|(layer, _)| layer.weight.as_str()).collect();
    for state in graph.states().iter().filter(|s| !gone.contains(s.name.as_str())) {
        let ty = graph.ty(state.value).clone();
        map[state.value.0 as usize] = Some(b.state_named(&state.name, ty, state.init.clone()));
    }
    let mut products = BTreeMap::new();
    for (layer, known) in layers {
        products.extend(layer.parts.iter().map(|part| (part.node.0, (known, &part.rows))));
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let get = |operand: usize| map[node.operands[operand].0 as usize];
        let known = |operand: usize| get(operand).expect("operands precede their node");
        let results = match products.get(&(index as u32)) {
            Some((known_of, rows)) => {
                let bias = (node.operands.len() == 3).then(|| known(2));
                // An embedding has its table first.
                let x = known(usize::from(node.op.composite::<Embedding>().is_some()));
                let _scope = b.scope_path(&node.scope);
                vec![build(known_of, LayerProduct { node, rows, x, bias })]
            }
            // A view of a weight that is gone, which nothing but its layer reads.
            None if (0..node.operands.len()).any(|operand| get(operand).is_none()) => continue,
            None => b.again(node, &(0..node.operands.len()).map(known).collect::<Vec<_>>()),
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

    /// Its products, on states that begin as its codes.
    pub(super) fn coded(&self) -> Coded<'_> {
        let begin = |tensor: &Tensor| (tensor.ty().clone(), Init::Value(tensor.clone()));
        let input = self.input.map(|(grid, element)| {
            let zero = Tensor::scalar(element, grid.zero);
            let zero = element.is_int().then(|| begin(&zero));
            (begin(&Tensor::scalar(DType::F32, grid.scale)), zero)
        });
        let Encoded { codes, scale, zero, tensor_scale } = &self.encoded;
        Coded {
            layer: &self.layer,
            scheme: &self.scheme,
            codes: begin(codes),
            scale: begin(scale),
            zero: zero.as_ref().map(begin),
            tensor_scale: tensor_scale.as_ref().map(begin),
            input,
        }
    }
}
