//! Finds the batch size that fits, if the requested one does not.
//!
//! Plans know their peak before anything runs, so that smaller batches are tried by planning alone.

use crate::learner::learner;
use crate::{Fit, Recipe, TrainError, training_step, with_loss};
use overdrive_ir::{BackendError, Tuning};
use overdrive_passes::plan;

/// Adds to an error that a memory limit is exceeded the largest batch, among halves of the one that
/// was asked for, that keeps it.
pub(crate) fn advised(error: TrainError, run: &Fit<'_>, tuning: &Tuning) -> TrainError {
    match error {
        TrainError::Backend(BackendError::OutOfMemory { needed, available, remedy })
            if run.memory_limit.is_some() && run.ranks.is_none() && !run.model.is_bound() =>
        {
            let halves = std::iter::successors(Some(run.recipe.batch / 2), |batch| Some(batch / 2));
            let fits = |batch: &usize| fits(run, tuning, *batch).unwrap_or(false);
            let advice = match halves.take_while(|batch| *batch > 0).find(fits) {
                Some(batch) => format!("; a batch of {batch} fits"),
                None => "; no smaller batch fits".to_owned(),
            };
            TrainError::Backend(BackendError::OutOfMemory {
                needed,
                available,
                remedy: remedy + &advice,
            })
        }
        other => other,
    }
}

fn fits(run: &Fit<'_>, tuning: &Tuning, batch: usize) -> Result<bool, TrainError> {
    let recipe = Recipe { batch, ..run.recipe.clone() };
    let forward = learner(run.model, &recipe, batch)?;
    let step = training_step(&with_loss(&forward, run.train.target())?, &recipe)?;
    let mode = run.backend.description().fastest_mode();
    Ok(plan(&step, mode, run.backend.target(), tuning).is_ok())
}
