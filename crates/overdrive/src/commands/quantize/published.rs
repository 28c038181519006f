//! `quantize` for a folder in Hugging Face's format: the head, the coding, and the folder that it
//! writes.

use super::chosen::Chosen;
use super::layout::Layout;
use crate::failure::Failure;
use crate::progress;
use crate::terminal::{note, tell};
use overdrive::bench::failure::Failure as Unable;
use overdrive::ir::{Backend, Graph, Init, Tensor, TensorType};
use overdrive::passes::{LayerKind, Preparation, Quantization, Quantized, layers};
use overdrive::studies::Template;
use overdrive::studies::pretrained::{Coding, Pretrained};
use overdrive::studies::quantization::{Going, apply_in_parts};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Whether the output layer of a published decoder is quantized too.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::commands) enum Head {
    Float,
    Quantized,
}

/// A model that has weights and no codes yet, with a head of its own where that is to be quantized.
pub(super) fn open(
    (name, head): (&str, Head),
    model: Pretrained,
) -> Result<Box<Pretrained>, Failure> {
    if let Some(coding) = &model.coding {
        return Err(Failure::bad_input(format!(
            "`{name}` is quantized already ({}): expected float weights; quantize the folder that \
             it was made from",
            coding.mode
        )));
    }
    Ok(Box::new(if head == Head::Quantized { model.untied() } else { model }))
}

/// Name of the layer that chooses experts in every published mixture.
const ROUTER: &str = ".gate";

/// The layers of a published model that stay in float. They are its head (as compressed-tensors and
/// vLLM have it, unless the user asks), layers that choose experts, and convolutions.
pub(super) fn in_float(
    head: Head,
    (model, template): (&Pretrained, &Template),
) -> Result<Vec<String>, Failure> {
    let mut stays = Vec::new();
    if let Some(name) = model.architecture.head().filter(|_| head == Head::Float) {
        note!(
            "note: `{name}` stays in float, as engines expect it; --head of `quantize` quantizes \
             it too"
        );
        stays.push(name.to_owned());
    }
    let (layers, _) = layers(&template.graph).map_err(Failure::harness)?;
    let (routers, layers): (Vec<_>, Vec<_>) =
        layers.into_iter().partition(|layer| layer.name.ends_with(ROUTER));
    if let Some(router) = routers.first() {
        note!(
            "note: {} that choose experts, `{}` for one, stay in float, as engines expect them",
            routers.len(),
            router.name
        );
    }
    stays.extend(routers.into_iter().map(|layer| layer.name));
    for layer in layers.into_iter().filter(|layer| layer.kind == LayerKind::Convolution) {
        note!("note: `{}` stays in float: engines have no codes for convolutions", layer.name);
        stays.push(layer.name);
    }
    Ok(stays)
}

/// The quantization of a published model. The layers in `stays` stay in float. In 16 bits they are
/// float, and engines expect all weights of a checkpoint in one format.
pub(super) fn meant(stays: &[String], mut quantization: Quantization) -> Quantization {
    // Engines have no codes for tables of embeddings.
    quantization.tables = None;
    if quantization.scheme.half().is_some() {
        return quantization;
    }
    quantization.layers.extend(stays.iter().map(|layer| (layer.clone(), None)));
    quantization
}

/// A model that has learnt, its weights rounded to the types of the folder, as they are written.
pub(super) fn rounded(model: &Pretrained, graph: Graph) -> Graph {
    let begin: BTreeMap<String, Init> =
        graph.states().iter().map(|state| (state.name.clone(), state.init.clone())).collect();
    graph.with_initial_values(|name, ty| match (&begin[name], model.weights.get(name)) {
        (Init::Value(learnt), Some(before)) if narrower(before.ty(), ty) => {
            Init::Widened(learnt.convert(before.ty().dtype))
        }
        (other, _) => other.clone(),
    })
}

fn narrower(stored: &TensorType, ty: &TensorType) -> bool {
    let (from, to) = (stored.dtype, ty.dtype);
    to.is_float() && stored.shape == ty.shape && from.is_float() && from.bits() < to.bits()
}

/// The model in a mode, block by block, with how far that is.
pub(super) fn apply(
    (backend, template): (&dyn Backend, &Template),
    how: (Preparation, &Quantization),
    seen: &[Vec<Tensor>],
    going: &Going<'_>,
) -> Result<Quantized, Unable> {
    progress::over("quantized blocks", |done| {
        apply_in_parts(backend, template, how, seen, (going, done))
    })
}

/// Writes the folder.
pub(super) fn write(
    folder: &Path,
    model: &Pretrained,
    (chosen, layout): (&Chosen, Option<Layout>),
) -> Result<(), Failure> {
    let Chosen { name, quantization, made, .. } = chosen;
    let coding = Coding::of(name, made, json!({ "range": quantization.range }));
    let graph = &made.graph;
    let notes = match layout {
        Some(layout) => layout.write(folder, (model, graph), &coding)?,
        None => model.write_quantized(folder, graph, &coding).map_err(Failure::bad_input)?,
    };
    notes.iter().try_for_each(|note| tell!("note: {note}"))
}
