//! The recipe of a run with the user's update rule and rates in place of the model's.

use crate::cli::{Betas, Clip, Optimization, OptimizerName};
use crate::failure::Failure;
use overdrive::ir::ops::AdamW;
use overdrive::train::{Optimizer, Recipe};

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
    let mut settings: AdamW = own.adamw();
    settings.weight_decay = asked.weight_decay.unwrap_or(settings.weight_decay);
    settings.betas = asked.betas.map_or(settings.betas, |Betas(betas)| betas);
    let rule = asked.optimizer.unwrap_or(OptimizerName::Adamw);
    match rule {
        OptimizerName::Adamw => refuse(
            "--momentum",
            asked.momentum.is_some(),
            "--optimizer muon or sgd, found adamw, whose momentum is the first of --betas",
        )?,
        OptimizerName::Muon => {}
        OptimizerName::Sgd => {
            refuse(
                "--betas",
                asked.betas.is_some(),
                "--optimizer adamw or muon, found sgd, which has --momentum",
            )?;
            refuse(
                "--optimizer sgd",
                asked.lr.is_none(),
                "--lr too, since the model's rate is one for AdamW; begin with a rate of about 0.1",
            )?;
        }
    }
    Ok(rule.rule(settings, asked.momentum))
}

/// Errs where an option is given for another rule.
fn refuse(option: &str, is_wrong: bool, expected: &str) -> Result<(), Failure> {
    if is_wrong {
        return Err(Failure::bad_input(format!("{option}: expected {expected}")));
    }
    Ok(())
}
