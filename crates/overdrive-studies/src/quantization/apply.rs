//! A mode from beginning to end: prepare, calibrate, quantize.
//!
//! GPTQ makes up for errors that it has to see. It therefore goes through the model block by block.
//! Each block is calibrated on the outputs of the quantized blocks before it (arXiv:2210.17323,
//! section 4). GPTAQ goes input by input, and the float model runs beside the quantized one. Biases
//! are corrected last, when all codes are known.

use super::auto_round;
use super::calibrate::{Batches, calibrate, calibrate_beside};
use super::going::{Going, to_the_end};
use super::judge::bound;
use super::streamed::outputs;
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, GraphError, Tensor};
use overdrive_passes::{
    Additions, Biases, Layer, LayerKind, OutputErrors, Preparation, Quantization, Quantized,
    QuantizedLayer, Skipped, Statistic, awq, awq_folded, complete, compress, correct_biases,
    equalize, layers, quantize, smooth, smooth_folded, sparsify,
};

/// The template's graph, prepared and quantized, with dimensions still unbound. Values are observed
/// on `batches`, which fit the template's own dimensions.
///
/// # Errors
/// When weights are not finite, there are no samples for a mode that needs some, or the back end
/// cannot run the graph.
pub fn apply(
    backend: &dyn Backend,
    template: &Template,
    how: (Preparation, &Quantization),
    batches: &[Vec<Tensor>],
) -> Result<Quantized, Failure> {
    apply_while(backend, template, how, batches, &to_the_end)
}

/// The same; whether it goes on is asked between blocks of GPTQ and steps of AutoRound.
///
/// # Errors
/// As [`apply`], and when it does not go on.
pub fn apply_while(
    backend: &dyn Backend,
    template: &Template,
    (preparation, quantization): (Preparation, &Quantization),
    batches: &[Vec<Tensor>],
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    let batches = Batches { seen: batches, float: batches };
    apply_beside(backend, template, (preparation, quantization), batches, going)
}

/// The same for a part of a model, whose inputs the parts before it have moved.
pub(super) fn apply_beside(
    backend: &dyn Backend,
    template: &Template,
    (preparation, quantization): (Preparation, &Quantization),
    batches: Batches<'_>,
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    // Tables and weights of 16 bits look at no sample: they come last, and the codes of layers are
    // found beside float ones.
    let codes = quantization.codes_of_layers();
    let made = coded(backend, template, (preparation, &codes), batches, going)?;
    complete(&template.graph, made, quantization).map_err(failed)
}

/// The same for codes alone.
fn coded(
    backend: &dyn Backend,
    template: &Template,
    (preparation, quantization): (Preparation, &Quantization),
    both: Batches<'_>,
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    let batches = both.seen;
    let evidence = |graph: &Graph, statistics: &[_]| {
        calibrate(backend, &bound(template, graph)?, statistics, batches)
    };
    let graph = &template.graph;
    let seen = evidence(graph, preparation.statistics())?;
    let (mut pruned, mut unpruned) = (Vec::new(), Vec::new());
    let in_place = quantization.additions == Additions::None;
    let mut unmoved = Vec::new();
    let among = |layer: &Layer| quantization.of(&layer.name).is_some();
    let prepared = match preparation {
        Preparation::None => graph.clone(),
        Preparation::Smooth(strength) if in_place => {
            let (moved, left) = smooth_folded(graph, &seen, strength, &among).map_err(failed)?;
            unmoved = left;
            moved
        }
        Preparation::Awq if in_place => {
            let format = &quantization.scheme.weights;
            let (moved, left) = awq_folded(graph, &seen, format, &among).map_err(failed)?;
            unmoved = left;
            moved
        }
        Preparation::Smooth(strength) => smooth(graph, &seen, strength).map_err(failed)?,
        Preparation::Awq => awq(graph, &seen, &quantization.scheme.weights).map_err(failed)?,
        Preparation::Equalize => {
            let (moved, left) = equalize(graph, &seen, &among).map_err(failed)?;
            unmoved = left;
            moved
        }
        Preparation::Prune(pruning) => {
            let sparse = sparsify(graph, pruning, &seen).map_err(failed)?;
            (pruned, unpruned) = (sparse.layers, sparse.skipped);
            sparse.graph
        }
    };
    let statistics = quantization.statistics();
    let (found, unable) = layers(&prepared).map_err(failed)?;
    let repeats =
        found.iter().any(|l| quantization.of(&l.name).is_some_and(|s| s.rounding.reads_inputs()));
    let mut made = if quantization.descends() {
        auto_round::rounded(
            backend,
            (&prepared, &bound(template, &prepared)?),
            quantization,
            batches,
            going,
        )?
    } else if repeats {
        let mut made = Quantized {
            graph: prepared.clone(),
            layers: vec![],
            skipped: unable,
            simplified: vec![],
        };
        let all: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
        // The float model runs beside the other if a statistic asks how far inputs have moved.
        let drifts = statistics.contains(&Statistic::Drift);
        let float = drifts.then(|| bound(template, &prepared)).transpose()?;
        let input = |layer: &Layer| prepared.node(layer.parts[0].node).operands[0];
        // Drift within a block counts too: there, layers of one input are rounded together.
        let together =
            |a: &Layer, b: &Layer| a.block() == b.block() && (!drifts || input(a) == input(b));
        for block in found.chunk_by(together) {
            going()?;
            let names: Vec<&str> = block.iter().map(|layer| layer.name.as_str()).collect();
            let seen = match &float {
                Some(float) => {
                    let coded = bound(template, &made.graph)?;
                    calibrate_beside(backend, (&coded, float), &statistics, both)?
                }
                None => evidence(&made.graph, &statistics)?,
            };
            let next =
                quantize(&made.graph, &quantization.only(&names, &all), &seen).map_err(failed)?;
            let of_block = |skipped: &Skipped| names.contains(&skipped.layer.as_str());
            made.graph = next.graph;
            made.layers.extend(next.layers);
            made.skipped.extend(next.skipped.into_iter().filter(of_block));
            made.simplified.extend(next.simplified);
        }
        made
    } else {
        quantize(&prepared, quantization, &evidence(&prepared, &statistics)?).map_err(failed)?
    };
    if quantization.biases == Biases::Corrected {
        made = corrected((backend, template), (&prepared, made), quantization.additions, batches)?;
    }
    made.simplified.extend(unmoved);
    made.simplified.extend(unprepared(preparation, &found, &made));
    for layer in unpruned {
        let named = |others: &[Skipped]| others.iter().any(|other| other.layer == layer.layer);
        if made.layers.iter().any(|report| report.name == layer.layer) {
            made.simplified.push(layer);
        } else if !named(&made.skipped) {
            made.skipped.push(layer);
        }
    }
    match quantization.additions {
        Additions::Free => compress(made, &pruned).map_err(failed),
        Additions::None => Ok(with_dense(made, &found, pruned)),
    }
}

/// The quantized model without its mean errors on these batches.
fn corrected(
    (backend, template): (&dyn Backend, &Template),
    (float, made): (&Graph, Quantized),
    additions: Additions,
    batches: &[Vec<Tensor>],
) -> Result<Quantized, Failure> {
    if batches.is_empty() {
        return Err(Failure::failed(
            "bias correction needs samples: expected at least one batch, found none",
        ));
    }
    let (exact, coded) = (bound(template, float)?, bound(template, &made.graph)?);
    let errors = OutputErrors::of(&exact, &coded).map_err(failed)?;
    if errors.is_empty() {
        return Ok(made);
    }
    let means = errors.means(&outputs(backend, &errors.graph, batches)?);
    correct_biases(made, float, &means, additions).map_err(failed)
}

/// The report of pruned layers whose weights keep their zeros.
fn with_dense(mut made: Quantized, found: &[Layer], pruned: Vec<String>) -> Quantized {
    for layer in found.iter().filter(|layer| pruned.contains(&layer.name)) {
        if !made.layers.iter().any(|report| report.name == layer.name) {
            let bytes = 4 * (layer.shape[0] * layer.shape[1]) as u64;
            made.layers.push(QuantizedLayer {
                name: layer.name.clone(),
                scheme: None,
                float_bytes: bytes,
                code_bytes: bytes,
                scale_bytes: 0,
                weight_error: 0.0,
            });
        }
    }
    made
}

/// The quantized layers that a preparation passes by.
fn unprepared(preparation: Preparation, found: &[Layer], made: &Quantized) -> Vec<Skipped> {
    let method = match preparation {
        Preparation::None | Preparation::Equalize | Preparation::Prune(_) => return vec![],
        Preparation::Smooth(_) => "SmoothQuant scales",
        Preparation::Awq => "AWQ scales",
    };
    let quantized = |layer: &&Layer| made.layers.iter().any(|other| other.name == layer.name);
    let convolutions =
        found.iter().filter(|layer| layer.kind == LayerKind::Convolution).filter(quantized);
    let reason = format!("{method} the inputs of linear layers only: rounded as it was");
    convolutions
        .map(|layer| Skipped { layer: layer.name.clone(), reason: reason.clone() })
        .collect()
}

fn failed(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}
