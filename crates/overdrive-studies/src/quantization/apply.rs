//! A mode from beginning to end: prepare, calibrate, quantize.

use super::calibrate::calibrate;
use crate::Template;
use overdrive_bench::outcome::Failure;
use overdrive_ir::{Backend, Graph, GraphError, Tensor};
use overdrive_passes::{Preparation, Quantization, Quantized, awq, bind, quantize, smooth};

/// The template's graph, unbound as it was, prepared and quantized; what has to be seen is seen on `batches`, which fit
/// the template's own dimensions.
///
/// # Errors
/// When weights are not finite, there are no samples for a mode that needs some, or the back end cannot run the graph.
pub fn apply(
    backend: &dyn Backend,
    template: &Template,
    (preparation, quantization): (Preparation, &Quantization),
    batches: &[Vec<Tensor>],
) -> Result<Quantized, Failure> {
    let evidence = |graph: &Graph, statistics: &[_]| {
        let bound = bind(graph, &template.dimensions).map_err(failed)?;
        calibrate(backend, &bound, statistics, batches)
    };
    let graph = &template.graph;
    let seen = evidence(graph, preparation.statistics())?;
    let prepared = match preparation {
        Preparation::None => graph.clone(),
        Preparation::Smooth(strength) => smooth(graph, &seen, strength).map_err(failed)?,
        Preparation::Awq => awq(graph, &seen, &quantization.scheme.weights).map_err(failed)?,
    };
    let seen = evidence(&prepared, &quantization.statistics())?;
    quantize(&prepared, quantization, &seen).map_err(failed)
}

fn failed(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}
