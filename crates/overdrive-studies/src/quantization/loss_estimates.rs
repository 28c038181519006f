//! The loss by each group of layers in each mode, estimated by gradients of the float model.
//!
//! A scan judges the model once for each group in each mode. An estimate needs a backward pass for
//! each batch, whatever the number of layers (formula and sources: `estimate_losses` of the crate
//! of passes). On the device it holds the weights, their codes in every mode, and what a backward
//! pass keeps. Invariant: the same samples give the same estimates, for signs follow from seeds.

use super::batches::batch_of;
use super::judge::{Judge, bound};
use super::metric::Metric;
use super::streamed::run;
use overdrive_bench::failure::Failure;
use overdrive_ir::{DType, GraphError, Tensor};
use overdrive_passes::{
    EstimatedPart, Evidence, LayerGroup, OutputLoss, Quantization, estimate_losses,
};

/// Draws of an estimate, one a sample, at least: its relative error is then an eighth. If there
/// are fewer samples, they are drawn again with new signs.
const DRAWS: usize = 128;

/// The estimated loss of the model with one group in a mode.
#[derive(Clone, PartialEq, Debug)]
pub struct EstimatedLoss {
    /// The group, its mode and its bytes.
    pub part: EstimatedPart,
    /// The loss, in the unit of [`Metric::loss`].
    pub lost: f64,
}

/// Estimates on the judge's samples; of labels only the kind matters. `going` is told how many
/// passes of how many are done, and says whether to go on: estimates are of those that were made.
/// Empty if no layer takes a mode.
///
/// # Errors
/// When an op of the model has no gradient, a weight is not finite, or the back end cannot run
/// the graph.
pub fn loss_estimates(
    judge: &Judge<'_>,
    (groups, modes): (&[LayerGroup], &[(&str, Quantization)]),
    evidence: &Evidence,
    going: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Vec<EstimatedLoss>, Failure> {
    let failed = |error: GraphError| Failure::failed(error.to_string());
    let loss = match judge.metric {
        Metric::Top1 | Metric::Perplexity => OutputLoss::CrossEntropy,
        Metric::SquaredError => OutputLoss::SquaredError,
        Metric::Cosine => OutputLoss::Cosine,
    };
    let float = bound(judge.template, &judge.template.graph)?;
    let made = estimate_losses((&float, loss), groups, modes, evidence).map_err(failed)?;
    let batches = judge.whole_batches(&float)?;
    if made.parts.is_empty() || batches.is_empty() {
        return Ok(Vec::new());
    }
    let passes = batches.len().max(DRAWS.div_ceil(batch_of(judge.template)));
    let with_seed = |pass: usize| {
        let seed = Tensor::from_ints(DType::U64, [0usize; 0], &[pass as i128]);
        [&batches[pass % batches.len()][..], &[seed]].concat()
    };
    let inputs: Vec<Vec<Tensor>> = (0..passes).map(with_seed).collect();
    let mut done = 0;
    let mut told = || {
        done += 1;
        going(done, passes)
    };
    let found = run((judge.backend, &made.graph), &inputs, &mut told)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut sums = vec![0.0; made.parts.len()];
    for draws in &found {
        sums.iter_mut().zip(draws[0].to_f64()).for_each(|(sum, draw)| *sum += draw);
    }
    let of = |(part, sum): (EstimatedPart, f64)| {
        let mean = sum / found.len() as f64;
        let lost = if loss == OutputLoss::CrossEntropy { 100.0 * mean.exp_m1() } else { mean };
        EstimatedLoss { part, lost }
    };
    Ok(made.parts.into_iter().zip(sums).map(of).collect())
}
