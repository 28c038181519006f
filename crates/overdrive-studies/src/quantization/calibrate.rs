//! Runs a graph on batches for the evidence that passes ask for.

use super::streamed::outputs;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, Tensor};
use overdrive_passes::{Evidence, Statistic, observe};

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
    if statistics.is_empty() {
        return Ok(Evidence::default());
    }
    if batches.is_empty() {
        return Err(Failure::failed(
            "calibration needs samples: expected at least one batch, found none",
        ));
    }
    let observed = observe(graph, statistics).map_err(|e| Failure::failed(e.to_string()))?;
    let mut evidence = Evidence::default();
    for outputs in outputs(backend, &observed, batches)? {
        evidence.add(&observed, &outputs);
    }
    Ok(evidence)
}
