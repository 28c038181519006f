//! Options of `train` that say how a model learns: the update rule and the rate of each step.

use super::values::tolerance;
use clap::{Args, ValueEnum};
use overdrive::ir::ops::AdamW;
use overdrive::train::{Decay, Optimizer};

/// Momentum unless said.
const OF_SGD: f64 = 0.9;

/// The update rule, its settings, and the rate of each step.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Optimization {
    /// Update rule [default: adamw]
    #[arg(long, value_name = "RULE")]
    pub optimizer: Option<OptimizerName>,
    /// Learning rate after the warm-up [default: the model's]
    #[arg(long, value_name = "X", value_parser = learning_rate, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Steps over which the rate rises to that [default: the model's, or a tenth of --steps if that
    /// is less]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// How the rate falls after the warm-up. `constant`: not at all; `cosine[:TO]`: to this factor;
    /// `wsd[:SHARE]`: it stays, and falls linearly over the last share of the steps; `wsd-sqrt`:
    /// the same with 1 - sqrt; `step:EVERY,BY`: times a factor after so many steps. TO is 0.1 and
    /// SHARE is 0.2 unless said [default: the model's]
    #[arg(long, value_name = "DECAY")]
    pub decay: Option<Decay>,
    /// Largest norm of all gradients together, to which longer ones are shortened; or `off`
    /// [default: the model's]
    #[arg(long, value_name = "NORM", value_parser = clip)]
    pub clip: Option<Clip>,
    /// Decoupled weight decay of matrices: each step takes rate times this share of them [default:
    /// the model's]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub weight_decay: Option<f64>,
    /// Decay of AdamW's first and second moment, as in 0.9,0.95 [default: the model's]
    #[arg(long, value_name = "B1,B2", value_parser = betas)]
    pub betas: Option<Betas>,
    /// Decay of the moment of `muon` and `sgd` [default: 0.95 and 0.9]
    #[arg(long, value_name = "M", value_parser = beta)]
    pub momentum: Option<f64>,
    /// Updates between two looks at the validation part [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_every: Option<u64>,
}

/// Update rules by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OptimizerName {
    /// Adam with decoupled weight decay
    Adamw,
    /// Muon for matrices of hidden layers: their moment is made orthogonal. AdamW for tables of
    /// embeddings, the first and the last layer, norms and biases. It takes AdamW's rate and decay
    Muon,
    /// Gradients with momentum. It needs a rate of its own
    Sgd,
}

impl OptimizerName {
    /// The rule with these settings, as far as it has them.
    pub(crate) fn rule(self, settings: AdamW, momentum: Option<f64>) -> Optimizer {
        let AdamW { betas, eps, weight_decay } = settings;
        match self {
            Self::Adamw => Optimizer::Adamw { betas, eps, weight_decay },
            Self::Muon => {
                let momentum = momentum.unwrap_or(Optimizer::MOMENTUM_OF_MUON);
                Optimizer::Muon { momentum, betas, eps, weight_decay }
            }
            Self::Sgd => Optimizer::Sgd { momentum: momentum.unwrap_or(OF_SGD), weight_decay },
        }
    }
}

/// The largest norm of gradients, if there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clip(pub Option<f64>);

/// β₁ and β₂.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Betas(pub [f64; 2]);

/// A learning rate that is one.
fn learning_rate(text: &str) -> Result<f64, String> {
    above_zero(text).ok_or_else(|| "expected a number above 0".to_owned())
}

fn above_zero(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| *x > 0.0 && x.is_finite())
}

fn clip(text: &str) -> Result<Clip, String> {
    if text == "off" {
        return Ok(Clip(None));
    }
    let norm = above_zero(text).ok_or_else(|| "expected a number above 0, or `off`".to_owned())?;
    Ok(Clip(Some(norm)))
}

fn beta(text: &str) -> Result<f64, String> {
    let beta = text.trim().parse().ok().filter(|beta| (0.0..1.0).contains(beta));
    beta.ok_or_else(|| "expected a number of at least 0 and below 1".to_owned())
}

fn betas(text: &str) -> Result<Betas, String> {
    let both = text.split_once(',').and_then(|(b1, b2)| Some([beta(b1).ok()?, beta(b2).ok()?]));
    both.map(Betas)
        .ok_or_else(|| "expected B1,B2, each of at least 0 and below 1, as in 0.9,0.95".to_owned())
}
