//! Runs the descent of AutoRound: block by block, on the inputs that the quantized blocks before
//! leave, towards the outputs of the float model.
//!
//! Invariants: the same samples give the same codes, since batches come in their order and nothing
//! is drawn. On the calibration samples, the outputs of no block err more than GPTQ leaves them.

use super::calibrate::calibrate;
use super::going::Going;
use super::streamed::outputs;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, DType, Graph, GraphError, Init, Mode, State, Tensor, Tuning};
use overdrive_passes::{
    AutoRound, Quantization, Quantized, QuantizedLayer, Scheme, Skipped, auto_round, block_ends,
    declare, layers, narrowest, segments,
};
use std::collections::BTreeMap;

/// Steps of the descent of a block (arXiv:2309.05516, section 4.1).
const STEPS: usize = 200;

/// Values that blocks of a model give each other, by name.
type Known = BTreeMap<String, Tensor>;

/// The graph, quantized so; `whole` is the same, bound to the sizes of the batches.
///
/// # Errors
/// When there is no batch, a weight or an error is not finite, or the back end cannot run a graph.
/// Also when it does not go on.
pub(super) fn rounded(
    backend: &dyn Backend,
    (graph, whole): (&Graph, &Graph),
    quantization: &Quantization,
    batches: &[Vec<Tensor>],
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    // A block alone does not tell that another block reads its weights too.
    let (mut found, unable) = layers(whole).map_err(failed)?;
    found.retain(|layer| quantization.of(&layer.name).is_some());
    let chosen: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    let ends = narrowest(whole, &block_ends(whole, 1));
    let blocks = segments(whole, &ends).map_err(failed)?;
    let named = |batch: &Vec<Tensor>| -> Known {
        whole.inputs().iter().map(|port| port.name.clone()).zip(batch.iter().cloned()).collect()
    };
    // The values that the blocks of the float model give each other, and the quantized ones.
    let mut exact: Vec<Known> = batches.iter().map(named).collect();
    let mut coded = exact.clone();
    let mut made =
        Quantized { graph: graph.clone(), layers: vec![], skipped: unable, simplified: vec![] };
    let mut begin: BTreeMap<String, Init> = BTreeMap::new();
    for block in &blocks {
        going()?;
        let given = |known: &Known| -> Vec<Tensor> {
            block.inputs().iter().map(|port| known[&port.name].clone()).collect()
        };
        let [from, seen] = [&exact, &coded].map(|all| all.iter().map(given).collect::<Vec<_>>());
        let targets = outputs(backend, block, &from)?;
        let (of_block, _) = layers(block).map_err(failed)?;
        let all: Vec<&str> = of_block.iter().map(|layer| layer.name.as_str()).collect();
        let quantization = quantization.only(&chosen, &all);
        let evidence = calibrate(backend, block, &quantization.statistics(), &seen)?;
        let descent = auto_round(block, &quantization, &evidence).map_err(failed)?;
        let next = match descent.is_empty() || descent.step.outputs().is_empty() {
            true => descent.conclude(&BTreeMap::new()).map_err(failed)?,
            false => descend(backend, &descent, (&seen, &targets), going)?,
        };
        let give = |known: &mut Vec<Known>, given: Vec<Vec<Tensor>>| {
            for (known, given) in known.iter_mut().zip(given) {
                known.extend(block.outputs().iter().map(|port| port.name.clone()).zip(given));
            }
        };
        give(&mut coded, outputs(backend, &next.graph, &seen)?);
        give(&mut exact, targets);
        begin.extend(next.graph.states().iter().map(|s| (s.name.clone(), s.init.clone())));
        let named = |remark: &Skipped| chosen.contains(&remark.layer.as_str());
        made.layers.extend(next.layers);
        made.skipped.extend(next.skipped.into_iter().filter(named));
        made.simplified.extend(next.simplified.into_iter().filter(named));
    }
    let scheme = |layer: &QuantizedLayer| Some((layer.name.clone(), layer.scheme?));
    let schemes: BTreeMap<String, Scheme> = made.layers.iter().filter_map(scheme).collect();
    let graph = declare(graph, &schemes).map_err(failed)?;
    made.graph = graph.with_initial_values(|name, _| begin[name].clone());
    Ok(made)
}

/// The block at the end of the descent, or at its beginning if that errs less.
fn descend(
    backend: &dyn Backend,
    descent: &AutoRound,
    (seen, targets): (&[Vec<Tensor>], &[Vec<Tensor>]),
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    let graph = &descent.step;
    let mut session = backend.compile(graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, backend)?;
    let mut results = graph
        .outputs()
        .iter()
        .map(|port| backend.output(graph.ty(port.value)))
        .collect::<Result<Vec<_>, _>>()?;
    // A step on a batch, of this distance; its error before the step.
    let mut step = |at: usize, rate: f64| -> Result<f64, Failure> {
        let targets = targets[at].iter().filter(|target| target.ty().dtype == DType::F32);
        let rate = [Tensor::scalar(DType::F32, rate)];
        let inputs = seen[at].iter().chain(&rate).chain(targets);
        let inputs = inputs.map(|x| backend.upload(x)).collect::<Result<Vec<_>, _>>()?;
        session.run(state.with(&inputs, &mut results))?.wait()?;
        let loss = backend.download(&results[0])?.to_f64()[0];
        match loss.is_finite() {
            true => Ok(loss),
            false => Err(Failure::failed(format!(
                "AutoRound: expected finite outputs of every block on the calibration data, found \
                 an error of {loss}; calibrate on samples that the model can take"
            ))),
        }
    };
    let before = (0..seen.len()).map(|at| step(at, 0.0)).sum::<Result<f64, _>>()?;
    for done in 0..STEPS {
        going()?;
        let left = 1.0 - done as f64 / STEPS as f64;
        step(done % seen.len(), left / STEPS as f64)?;
    }
    let after = (0..seen.len()).map(|at| step(at, 0.0)).sum::<Result<f64, _>>()?;
    let mut moved = BTreeMap::new();
    if after < before {
        for (name, buffer) in &state.buffers {
            moved.insert(name.clone(), backend.download(buffer)?);
        }
    }
    descent.conclude(&moved).map_err(failed)
}

fn failed(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}
