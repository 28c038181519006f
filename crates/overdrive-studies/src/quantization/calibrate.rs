//! Runs a graph on batches, for its outputs and for the evidence that passes ask for.

use overdrive_bench::outcome::Failure;
use overdrive_ir::{Backend, Graph, Mode, State, Tensor, Tuning};
use overdrive_passes::{Evidence, Statistic, observe};

/// The outputs of a bound graph on each batch, its states being what they begin as.
///
/// # Errors
/// When the back end cannot run it.
pub fn outputs(
    backend: &dyn Backend,
    graph: &Graph,
    batches: &[Vec<Tensor>],
) -> Result<Vec<Vec<Tensor>>, Failure> {
    let mut executable = backend.compile(graph, Mode::Compile, &Tuning::default())?;
    let mut state = State::initial(graph, backend)?;
    let types = || graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut results = types().map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::with_capacity(batches.len());
    for batch in batches {
        let inputs =
            batch.iter().map(|tensor| backend.upload(tensor)).collect::<Result<Vec<_>, _>>()?;
        executable.run(&mut state, &inputs, &mut results)?.wait()?;
        found
            .push(results.iter().map(|buffer| backend.download(buffer)).collect::<Result<_, _>>()?);
    }
    Ok(found)
}

/// What the contractions of a bound graph see on these batches.
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
