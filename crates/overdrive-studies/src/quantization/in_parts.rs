//! A mode block by block. Each block is calibrated on the outputs of the quantized blocks before
//! it, and only its weights are on the device.
//!
//! Time grows with the number of blocks, where to run all of the model for each grows with its
//! square (arXiv:2210.17323, section 4). GPTAQ also runs the float blocks, each on the outputs of
//! the float blocks before it. Invariant: the graph is that of [`apply_while`](super::apply_while),
//! codes apart where its blocks see other roundings.

use super::apply::apply_beside;
use super::calibrate::Batches;
use super::going::Going;
use super::judge::bound;
use super::streamed::outputs;
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, GraphError, Init, Tensor};
use overdrive_passes::{
    Layer, Preparation, Quantization, Quantized, QuantizedLayer, Scheme, Skipped, Statistic,
    complete, declare, layers, segments,
};
use std::collections::BTreeMap;

/// Values that parts of a model give each other, by name.
type Known = BTreeMap<String, Tensor>;

/// The same as [`apply_while`](super::apply_while), block by block. `done` is called after each
/// block, with the number of all blocks.
///
/// # Errors
/// As [`apply_while`](super::apply_while).
pub fn apply_in_parts(
    backend: &dyn Backend,
    template: &Template,
    (preparation, quantization): (Preparation, &Quantization),
    batches: &[Vec<Tensor>],
    (going, done): (&Going<'_>, &mut dyn FnMut(usize, usize)),
) -> Result<Quantized, Failure> {
    let whole = bound(template, &template.graph)?;
    // A part alone does not tell that another part reads its weights too.
    let (mut found, unable) = layers(&whole).map_err(failed)?;
    let is_coded = |scheme: Scheme| scheme.half().is_none();
    found.retain(|layer| quantization.of(&layer.name).is_some_and(is_coded));
    let chosen: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    let parts = match found.is_empty() {
        true => Vec::new(),
        false => blocks(&whole, &found).map_err(failed)?,
    };
    let named = |batch: &Vec<Tensor>| {
        whole.inputs().iter().map(|port| port.name.clone()).zip(batch.iter().cloned()).collect()
    };
    let mut known: Vec<Known> = batches.iter().map(named).collect();
    // The same values in the float model, if a statistic asks for them.
    let drifts = quantization.statistics().contains(&Statistic::Drift);
    let mut exact: Option<Vec<Known>> = drifts.then(|| known.clone());
    let mut made =
        Quantized { graph: whole.clone(), layers: vec![], skipped: unable, simplified: vec![] };
    let mut begin: BTreeMap<String, Init> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        going()?;
        let (of_part, _) = layers(part).map_err(failed)?;
        let all: Vec<&str> = of_part.iter().map(|layer| layer.name.as_str()).collect();
        if !all.iter().any(|name| chosen.contains(name)) {
            // The head, behind the last block.
            continue;
        }
        let of_part = quantization.only(&chosen, &all);
        let given = |known: &Known| -> Vec<Tensor> {
            part.inputs().iter().map(|port| known[&port.name].clone()).collect()
        };
        let all_given = |known: &Vec<Known>| known.iter().map(given).collect::<Vec<_>>();
        let (seen, float) = (all_given(&known), exact.as_ref().map(all_given));
        let template = Template {
            graph: part.clone(),
            dimensions: BTreeMap::new(),
            limits: BTreeMap::new(),
            config: None,
            ..template.clone()
        };
        let batches = Batches { seen: &seen, float: float.as_ref().unwrap_or(&seen) };
        let next = apply_beside(backend, &template, (preparation, &of_part), batches, going)?;
        // Nobody reads the outputs of the last part.
        if index + 1 < parts.len() {
            let give = |known: &mut Vec<Known>, given: Vec<Vec<Tensor>>| {
                for (known, given) in known.iter_mut().zip(given) {
                    known.extend(part.outputs().iter().map(|port| port.name.clone()).zip(given));
                }
            };
            give(&mut known, outputs(backend, &next.graph, &seen)?);
            if let (Some(exact), Some(float)) = (&mut exact, &float) {
                give(exact, outputs(backend, part, float)?);
            }
        }
        begin.extend(
            next.graph.states().iter().map(|state| (state.name.clone(), state.init.clone())),
        );
        made.layers.extend(next.layers);
        let named = |remark: &Skipped| chosen.contains(&remark.layer.as_str());
        made.skipped.extend(next.skipped.into_iter().filter(named));
        made.simplified.extend(next.simplified.into_iter().filter(named));
        done(index + 1, parts.len());
    }
    let scheme = |layer: &QuantizedLayer| Some((layer.name.clone(), layer.scheme?));
    let schemes: BTreeMap<String, Scheme> = made.layers.iter().filter_map(scheme).collect();
    let graph = declare(&template.graph, &schemes).map_err(failed)?;
    let own: BTreeMap<&str, &Init> =
        template.graph.states().iter().map(|state| (state.name.as_str(), &state.init)).collect();
    made.graph = graph.with_initial_values(|name, _| match begin.remove(name) {
        Some(init) => init,
        None => own[name].clone(),
    });
    complete(&template.graph, made, quantization).map_err(failed)
}

/// The graph cut behind each block of these layers.
fn blocks(graph: &Graph, found: &[Layer]) -> Result<Vec<Graph>, GraphError> {
    let end = |block: &[Layer]| {
        let nodes = block.iter().flat_map(|layer| &layer.parts).map(|part| part.node);
        nodes.max_by_key(|node| node.0).expect("a layer has a product")
    };
    let ends: Vec<_> = found.chunk_by(|a, b| a.block() == b.block()).map(end).collect();
    segments(graph, &ends)
}

fn failed(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}
