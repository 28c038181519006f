//! The recipe of a run with the user's update rule and rates in place of the model's.

use crate::cli::{Betas, Clip, Optimization, OptimizerName};
use crate::failure::Failure;
use overdrive::ir::ops::AdamW;
use overdrive::train::{Optimizer, Recipe};

/// Momentum unless said.
const OF_SGD: f64 = 0.9;

/// The recipe for these steps, or the model's own number of them.
pub(super) fn optimized(
    asked: &Optimization,
    steps: Option<u64>,
    mut recipe: Recipe,
) -> Result<Recipe, Failure> {
    recipe.optimizer = optimizer(asked, recipe.optimizer)?;
    recipe.schedule.peak = asked.lr.unwrap_or(recipe.schedule.peak);
    recipe.schedule.decay = asked.decay.unwrap_or(recipe.schedule.decay);
    if let Some(steps) = steps {
        recipe.schedule.warmup = recipe.schedule.warmup.min(steps / 10);
        recipe.steps = steps;
    }
    if let Some(warmup) = asked.warmup {
        if warmup >= recipe.steps {
            return Err(Failure::bad_input(format!(
                "--warmup {warmup}: expected fewer steps than the run has, found {}; warm up over \
                 less, or raise --steps",
                recipe.steps
            )));
        }
        recipe.schedule.warmup = warmup;
    }
    recipe.clip_norm = asked.clip.map_or(recipe.clip_norm, |Clip(norm)| norm);
    recipe.evaluate_every = asked.eval_every.unwrap_or(recipe.evaluate_every);
    Ok(recipe)
}

/// The update rule that the user asks for; the rest of it is that of the recipe.
fn optimizer(asked: &Optimization, own: Optimizer) -> Result<Optimizer, Failure> {
    let AdamW { betas, eps, weight_decay } = own.adamw();
    let weight_decay = asked.weight_decay.unwrap_or(weight_decay);
    let betas = asked.betas.map_or(betas, |Betas(betas)| betas);
    match asked.optimizer.unwrap_or(OptimizerName::Adamw) {
        OptimizerName::Adamw => {
            refuse(
                "--momentum",
                asked.momentum.is_some(),
                "--optimizer muon or sgd, found adamw, whose \
                   momentum is the first of --betas",
            )?;
            Ok(Optimizer::Adamw { betas, eps, weight_decay })
        }
        OptimizerName::Muon => {
            let momentum = asked.momentum.unwrap_or(Optimizer::MOMENTUM_OF_MUON);
            Ok(Optimizer::Muon { momentum, betas, eps, weight_decay })
        }
        OptimizerName::Sgd => {
            refuse(
                "--betas",
                asked.betas.is_some(),
                "--optimizer adamw or muon, found sgd, which has \
                   --momentum",
            )?;
            refuse(
                "--optimizer sgd",
                asked.lr.is_none(),
                "--lr too, since the model's rate is \
                   one for AdamW; begin with a rate of about 0.1",
            )?;
            Ok(Optimizer::Sgd { momentum: asked.momentum.unwrap_or(OF_SGD), weight_decay })
        }
    }
}

/// Errs where an option is given for another rule.
fn refuse(option: &str, is_wrong: bool, expected: &str) -> Result<(), Failure> {
    if is_wrong {
        return Err(Failure::bad_input(format!("{option}: expected {expected}")));
    }
    Ok(())
}
