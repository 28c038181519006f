//! Weights in 16 bits, and products of operands in that format, summed in f32.
//!
//! Such weights have no codes and no scales. `store` keeps them narrow, and `precision` multiplies
//! them so, as in a checkpoint that is decoded in bf16. A table of embeddings is a weight as well,
//! though no layer. Invariant: the format of a product follows from the graph. With a weight it is
//! that of the weight, so a layer in f32 or in codes stays what it was. A product of activations
//! alone, as in attention, has that of the weights in 16 bits; if there are both, bf16.

use super::layers::{NO_PARAMETER, layers, relative_error};
use super::{Layer, Quantization, Quantized, QuantizedLayer, Rounding, Scheme, Skipped};
use crate::on_cores::on_cores;
use crate::precision::precision_of;
use crate::{Recipe, store};
use overdrive_ir::{
    DType, Graph, GraphError, Init, Node, Prim, StateDecl, Tensor, TensorType, Value,
};
use std::collections::{BTreeMap, BTreeSet};

/// A weight in 16 bits.
pub(super) struct HalfWeight {
    /// The name of its layer, or of its state if it is of no layer.
    pub(super) name: String,
    /// Its state.
    pub(super) state: String,
    format: DType,
}

/// A graph with weights in 16 bits that begin as zeros.
pub(super) struct Halved {
    pub(super) graph: Graph,
    pub(super) weights: Vec<HalfWeight>,
}

impl Halved {
    /// `graph` with weights of `float` in the formats that `format` gives by name. `graph` was made
    /// of `float`: a weight that has codes there is none to take.
    ///
    /// # Errors
    /// When a graph is ill-formed.
    pub(super) fn of(
        float: &Graph,
        graph: &Graph,
        format: &dyn Fn(&str) -> Option<DType>,
    ) -> Result<Self, GraphError> {
        let (found, _) = layers(float)?;
        let layers: BTreeMap<&str, &Layer> =
            found.iter().map(|layer| (layer.weight.as_str(), layer)).collect();
        let of_graph = types(graph);
        let weight = |state: &StateDecl| {
            let ty = float.ty(state.value);
            let layer = layers.get(state.name.as_str());
            let is_taken = ty.dtype == DType::F32
                && state.update.is_none()
                && (layer.is_some() || is_matrix(ty))
                && of_graph.get(state.name.as_str()) == Some(&ty);
            let name = layer.map_or(&state.name, |layer| &layer.name).clone();
            let format = format(&name).filter(|_| is_taken)?;
            Some(HalfWeight { name, state: state.name.clone(), format })
        };
        let mut weights: Vec<HalfWeight> = float.states().iter().filter_map(weight).collect();
        let formats: BTreeMap<String, DType> =
            weights.iter().map(|weight| (weight.state.clone(), weight.format)).collect();
        let begin: BTreeMap<&str, &Init> =
            graph.states().iter().map(|state| (state.name.as_str(), &state.init)).collect();
        let zeroed = graph.clone().with_initial_values(|name, _| match formats.get(name) {
            Some(_) => Init::ZEROS,
            None => begin[name].clone(),
        });
        let mut graph = store(&zeroed, &|name, _| formats.get(name).copied())?;
        // A state that is an output keeps its type.
        let stored = types(&graph);
        weights.retain(|weight| stored[weight.state.as_str()].dtype == weight.format);
        for contractions in [DType::BF16, DType::F16] {
            if weights.iter().any(|weight| weight.format == contractions) {
                let sources = sources(&graph);
                let takes = |node: &Node| is_in(&graph, node, (&sources, contractions));
                graph = precision_of(&graph, &Recipe { contractions }, &takes)?;
            }
        }
        Ok(Self { graph, weights })
    }
}

/// `made` of `float`, with every weight in 16 bits to which `quantization` gives them.
///
/// # Errors
/// When a rounded weight is not finite: f16 ends at 65504.
pub(super) fn halve(
    float: &Graph,
    mut made: Quantized,
    quantization: &Quantization,
) -> Result<Quantized, GraphError> {
    if !quantization.halves() {
        return Ok(made);
    }
    let format = |name: &str| quantization.of(name).and_then(|scheme| scheme.half());
    let Halved { graph, weights } = Halved::of(float, &made.graph, &format)?;
    let before: BTreeMap<&str, &StateDecl> =
        made.graph.states().iter().map(|state| (state.name.as_str(), state)).collect();
    let ty = |weight: &HalfWeight| made.graph.ty(before[weight.state.as_str()].value);
    let elements = |weight: &HalfWeight| ty(weight).elements();
    let rounded = on_cores(&weights, elements, |weight| {
        let init = &before[weight.state.as_str()].init;
        let (tensor, error) = rounded(weight, &init.tensor(&weight.state, ty(weight)))?;
        let scheme = quantization.of(&weight.name).expect("it has a format");
        let report = QuantizedLayer {
            name: weight.name.clone(),
            scheme: Some(Scheme { rounding: Rounding::Nearest, ..scheme }),
            float_bytes: ty(weight).bytes() as u64,
            code_bytes: tensor.ty().bytes() as u64,
            scale_bytes: 0,
            weight_error: error,
        };
        Ok((tensor, report))
    });
    let (tensors, reports): (Vec<Tensor>, Vec<QuantizedLayer>) =
        rounded.into_iter().collect::<Result<Vec<_>, GraphError>>()?.into_iter().unzip();
    let mut values: BTreeMap<&str, Tensor> =
        weights.iter().map(|weight| weight.state.as_str()).zip(tensors).collect();
    let graph = graph.with_initial_values(|name, _| match values.remove(name) {
        Some(tensor) => Init::Value(tensor),
        None => before[name].init.clone(),
    });
    let everywhere = quantization.scheme.half().is_some();
    let named: BTreeSet<&str> =
        weights.iter().filter_map(|weight| Some(weight.state.rsplit_once('.')?.0)).collect();
    made.skipped.retain(|Skipped { layer, reason }| {
        !(named.contains(layer.as_str()) || everywhere && reason == NO_PARAMETER)
    });
    made.layers.extend(reports);
    Ok(Quantized { graph, ..made })
}

/// The weight in its format, and its relative error.
fn rounded(weight: &HalfWeight, values: &Tensor) -> Result<(Tensor, f64), GraphError> {
    let format = weight.format;
    let rounded = values.convert(format);
    let (values, found) = (values.to_f64(), rounded.to_f64());
    match values.iter().zip(&found).find(|(_, rounded)| !rounded.is_finite()) {
        None => Ok((rounded, relative_error(&values, &found))),
        Some((value, _)) => Err(GraphError {
            op: "quantize".into(),
            scope: weight.state.clone(),
            expected: format!(
                "finite weights of at most {:.0}, the largest number of {format}",
                format.max_value()
            ),
            found: value.to_string(),
            remedy: match (format, value.is_finite()) {
                (DType::F16, true) => "take mode `bf16`, which has the range of f32".into(),
                _ => "repair the weights".into(),
            },
        }),
    }
}

/// Types of states by name.
fn types(graph: &Graph) -> BTreeMap<&str, &TensorType> {
    graph.states().iter().map(|state| (state.name.as_str(), graph.ty(state.value))).collect()
}

/// Whether more than one axis has several elements: a scale of channels has one, whatever its rank.
fn is_matrix(ty: &TensorType) -> bool {
    ty.shape.known().is_some_and(|sizes| sizes.iter().filter(|&&size| size > 1).count() > 1)
}

/// The source of the numbers of a value.
#[derive(Copy, Clone, PartialEq)]
enum Source {
    Constants,
    /// A weight of this format, perhaps viewed or widened.
    Weight(DType),
    /// Several weights, or one that something was computed of.
    Weights,
    Activations,
}

/// The source of each value.
fn sources(graph: &Graph) -> Vec<Source> {
    let mut sources = vec![Source::Activations; graph.value_count()];
    for state in graph.states().iter().filter(|state| state.update.is_none()) {
        sources[state.value.0 as usize] = Source::Weight(graph.ty(state.value).dtype);
    }
    for node in graph.nodes() {
        let of: Vec<Source> = node.operands.iter().map(|v| sources[v.0 as usize]).collect();
        let is_view = matches!(
            node.op.prim(),
            Some(
                Prim::Reshape { .. }
                    | Prim::Transpose { .. }
                    | Prim::Slice { .. }
                    | Prim::Convert { .. }
            )
        );
        let source = match of[..] {
            [one] if is_view => one,
            _ if of.contains(&Source::Activations) => Source::Activations,
            _ if of.iter().all(|source| *source == Source::Constants) => Source::Constants,
            _ => Source::Weights,
        };
        node.results.iter().for_each(|v| sources[v.0 as usize] = source);
    }
    sources
}

/// Whether a product is in this format: its matrices are weights of the format, or no weights.
fn is_in(graph: &Graph, node: &Node, (sources, format): (&[Source], DType)) -> bool {
    let matrices = node.operands.iter().filter(|v| graph.ty(**v).rank() > 1);
    let mut sources = matrices.map(|Value(v)| sources[*v as usize]);
    sources.all(|source| match source {
        Source::Weight(found) => found == format,
        Source::Weights => false,
        Source::Constants | Source::Activations => true,
    })
}
