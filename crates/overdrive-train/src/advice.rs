//! Finds the batch size that fits, if the requested one does not.
//!
//! Plans know their peak before anything runs, so that smaller batches are tried by planning alone.

use crate::learner::learner;
use crate::{Fit, Recipe, TrainError, training_step, with_loss};
use overdrive_ir::{BackendError, StateDecl, Tuning};
use overdrive_passes::{OR_SMALLER_BATCH, plan};

/// Adds to an error that a memory limit is exceeded the largest batch, among halves of the one that
/// was asked for, that keeps it.
pub(crate) fn advised(error: TrainError, run: &Fit<'_>, tuning: &Tuning) -> TrainError {
    match error {
        TrainError::Backend(BackendError::OutOfMemory { needed, available, remedy })
            if run.memory_limit.is_some() && run.ranks.is_none() && !run.model.is_bound() =>
        {
            let halves = std::iter::successors(Some(run.recipe.batch / 2), |batch| Some(batch / 2));
            let halves = halves.take_while(|batch| *batch > 0);
            let fits = |batch: usize| fits(run, tuning, batch).unwrap_or(false);
            // Planning a batch that does not fit takes longest. If 1 does not, none does.
            let least = if fits(1) { 1 } else { usize::MAX };
            let fitting = halves.filter(|batch| *batch >= least).find(|batch| fits(*batch));
            let remedy = match fitting {
                Some(batch) => format!("{remedy}; a batch of {batch} fits"),
                None => {
                    let remedy = remedy.strip_suffix(OR_SMALLER_BATCH).unwrap_or(&remedy);
                    format!("{remedy}; no smaller batch fits")
                }
            };
            TrainError::Backend(BackendError::OutOfMemory { needed, available, remedy })
        }
        other => other,
    }
}

fn fits(run: &Fit<'_>, tuning: &Tuning, batch: usize) -> Result<bool, TrainError> {
    let recipe = Recipe { batch, ..run.recipe.clone() };
    let forward = learner(run.model, &recipe, batch)?;
    let step = training_step(&with_loss(&forward, run.train.target())?, &recipe)?;
    let device = run.backend.description();
    // Nothing but states of the optimizer may wait in other memory. No plan takes fewer bytes.
    let stays = |state: &&StateDecl| {
        device.spaces.is_empty() || forward.states().iter().any(|own| own.name == state.name)
    };
    let states = step.states().iter().filter(stays).map(|state| step.ty(state.value).bytes());
    if run.memory_limit.is_some_and(|limit| states.sum::<usize>() as u64 > limit) {
        return Ok(false);
    }
    Ok(plan(&step, device.fastest_mode(), run.backend.target(), tuning).is_ok())
}
