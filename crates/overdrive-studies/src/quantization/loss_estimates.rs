//! What each group of layers loses in each mode, estimated by gradients of the float model.
//!
//! A scan judges the model once for each group in each mode. An estimate needs a backward pass for
//! each batch, whatever the number of layers (formula and sources: `estimate_losses` of the crate
//! of passes). It holds the gradients of all weights at once, and their changes in every mode.
//! Invariant: the same samples give the same estimates, for the signs are those of a seed.

use super::judge::{Judge, bound};
use super::metric::Metric;
use super::streamed::run;
use overdrive_bench::failure::Failure;
use overdrive_ir::{DType, GraphError, Tensor};
use overdrive_passes::{
    EstimatedPart, Evidence, LayerGroup, OutputLoss, Quantization, estimate_losses,
};

/// Passes that are made at least, with new signs where there are fewer batches. A layer of ten
/// outputs then has 160 draws, and an estimate a standard error of a ninth of itself.
const PASSES: usize = 16;

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
/// Empty if there were none, or no layer takes a mode.
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
    if made.parts.is_empty() {
        return Ok(Vec::new());
    }
    let batches = judge.whole_batches(&float)?;
    let passes = batches.len().max(PASSES);
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
