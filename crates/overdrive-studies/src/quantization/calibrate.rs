//! Runs a graph on batches for the evidence that passes ask for.

use super::streamed::outputs;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, GraphError, Tensor};
use overdrive_passes::{Evidence, Statistic, observe, observe_beside};

/// Batches that calibrate a part of a model.
#[derive(Copy, Clone)]
pub(super) struct Batches<'a> {
    /// Its inputs, as the quantized parts before it leave them.
    pub(super) seen: &'a [Vec<Tensor>],
    /// The same inputs in the float model.
    pub(super) float: &'a [Vec<Tensor>],
}

/// Evidence of the values that contractions of a bound graph read on these batches.
///
/// # Errors
/// When there is no batch, or the back end cannot run the graph.
pub fn calibrate(
    backend: &dyn Backend,
    graph: &Graph,
    statistics: &[Statistic],
    batches: &[Vec<Tensor>],
) -> Result<Evidence, Failure> {
    gathered(backend, statistics, batches, || observe(graph, statistics))
}

/// The same of a graph that has codes in some layers of `float`, which runs beside it on batches of
/// its own.
///
/// # Errors
/// As [`calibrate`].
pub(super) fn calibrate_beside(
    backend: &dyn Backend,
    (graph, float): (&Graph, &Graph),
    statistics: &[Statistic],
    batches: Batches<'_>,
) -> Result<Evidence, Failure> {
    let both = |(seen, float): (&Vec<Tensor>, &Vec<Tensor>)| [&seen[..], float].concat();
    let both: Vec<_> = batches.seen.iter().zip(batches.float).map(both).collect();
    gathered(backend, statistics, &both, || observe_beside(graph, float, statistics))
}

fn gathered(
    backend: &dyn Backend,
    statistics: &[Statistic],
    batches: &[Vec<Tensor>],
    observed: impl FnOnce() -> Result<Graph, GraphError>,
) -> Result<Evidence, Failure> {
    if statistics.is_empty() {
        return Ok(Evidence::default());
    }
    if batches.is_empty() {
        return Err(Failure::failed(
            "calibration needs samples: expected at least one batch, found none",
        ));
    }
    let observed = observed().map_err(|e| Failure::failed(e.to_string()))?;
    let mut evidence = Evidence::default();
    for outputs in outputs(backend, &observed, batches)? {
        evidence.add(&observed, &outputs);
    }
    Ok(evidence)
}
