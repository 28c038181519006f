//! The loop around the step: batches, validation, early stop, checkpoints.

use crate::advice::advised;
use crate::checkpoint::{Checkpoint, Keeper, PartFile, RunFacts};
use crate::data::{Batch, Shifted, Split, Subset, hex};
use crate::kept_model::stored;
use crate::learner::learner;
use crate::ranks::{Neighbours, Ranks, Votes};
use crate::rise::Losses;
use crate::trainer::{initial_elements, seeded};
use crate::{
    Augmentation, Ending, Evaluator, Fit, Fitted, Observer, Progress, Recipe, Shards, Sharing,
    Shuffle, TrainError, Trainer, initial_parameter, with_loss,
};
use overdrive_formats::Tensors;
use overdrive_ir::eval::philox;
use overdrive_ir::{Communicator, Graph, StateDecl, Tuning};
use overdrive_passes::left_in_float;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Trains.
///
/// # Errors
/// When the model, the recipe and the data do not fit, the loss stops being finite, or a checkpoint
/// cannot be written.
pub fn fit(run: &Fit<'_>, observer: &mut dyn Observer) -> Result<Fitted, TrainError> {
    let recipe = run.recipe;
    recipe.check()?;
    let ranks = Ranks(run.ranks, run.sharing);
    let forward = learner(run.model, recipe, recipe.batch)?;
    let initial = |name: &str| {
        let state = forward.states().iter().find(|state| state.name == name)?;
        Some(seeded(state, recipe.seed))
    };
    let origin = origin(run.train, recipe, &forward)?;
    // The choices made when the run began; its bits depend on them.
    let choices = run.resume.map(|checkpoint| checkpoint.choices.clone()).unwrap_or_default();
    let tuning = Tuning { memory_limit: run.memory_limit, choices, ..Tuning::default() };
    let target = run.train.target();
    let done = run.resume.map_or(0, |checkpoint| checkpoint.progress.done);
    ranks.check(recipe, || trained_by_all(run, &forward, (&origin, done)))?;
    let place = (run.backend, ranks);
    let judged_by = with_loss(&forward, target)?;
    let trainer = Trainer::of_rank(place, &judged_by, recipe, &initial, &tuning);
    let mut trainer = trainer.map_err(|error| advised(error, (run, &tuning), observer))?;
    let flops = ranks.sum("the FLOPs of a step", trainer.flops())?;
    observer.planned(trainer.plan(), &trainer.memory(), flops);
    if let Some(float8) = &recipe.float8 {
        observer.left_in_float(&left_in_float(&judged_by, float8));
    }
    let read = stored(&forward, recipe)?;
    let judged = (&read, Some(trainer.held()));
    let mut evaluator = Evaluator::of_rank(place, judged, (target, recipe.precision))?;
    let most = recipe.samples_of_look(evaluator.labels_of_sample());
    let looked_at = Subset::evenly(Arc::clone(run.validation), most);
    let range = ranks.part(looked_at.len());
    let validation = Neighbours { split: &looked_at, range };
    let most = ranks.longest_part(looked_at.len());
    let (mut progress, mut best) = (Progress::default(), Tensors::new());
    if let Some(checkpoint) = run.resume {
        checkpoint.check(recipe, &origin)?;
        checkpoint.check_files(ranks.rank(), ranks.all_count())?;
        trainer.restore(checkpoint)?;
        (progress, best) = (checkpoint.progress, trainer.best_of(checkpoint)?);
    }
    if let Some(path) = run.checkpoint.filter(|_| ranks.is_first()) {
        // The model is no larger than a checkpoint, and comes when only one is left.
        let best = if recipe.early_stop.is_some() { trainer.parameter_bytes() } else { 0 };
        let files = if trainer.held().is_split() { ranks.all_count() } else { 1 };
        let bytes = (trainer.snapshot_bytes() + best) / files as u64;
        // A run whose steps are all done writes none.
        let copies = match trainer.done() < recipe.steps {
            true => Checkpoint::copies_to_come(path, run.resume),
            false => 0,
        };
        overdrive_files::check_room(path, &vec![bytes; copies * files])?;
    }
    let mut keeper = run.checkpoint.map(|path| Keeper::open(path, ranks)).transpose()?;
    let choices = trainer.choices().clone();
    let mesh = run.ranks.map(Communicator::mesh).cloned().unwrap_or_default();
    let shifted = match recipe.augmentation {
        Augmentation::None => None,
        Augmentation::Shift => Some(Shifted::new(run.train)?),
    };
    let train = shifted.as_ref().map_or(run.train, |shifted| shifted as &dyn Split);
    let is_stale = |progress: &Progress| {
        recipe.early_stop.is_some_and(|stop| progress.stale >= u64::from(stop.patience))
    };
    // A run that was killed after its last checkpoint may have ended before.
    let mut ending = if is_stale(&progress) { Ending::Early } else { Ending::Finished };
    let (mut wishes_on, mut losses) = (true, Losses::default());
    let mut next = part_of_batches(train, recipe, trainer.done(), ranks);
    while ending == Ending::Finished && trainer.done() < recipe.steps {
        let (now, after) = (next?, trainer.done() + 1);
        // Batches after the last step are drawn and never used.
        // Ranks exchange while their devices compute, so they end one step after the first wish to.
        let is_written = keeper.as_ref().is_some_and(Keeper::is_written);
        let is_due = keeper.as_ref().is_some_and(Keeper::is_due);
        let own = Votes { goes_on: wishes_on, is_written, is_due };
        let meanwhile = || (part_of_batches(train, recipe, after, ranks), ranks.all(own));
        let stepped = trainer.step_beside(&now, meanwhile);
        if let (Err(TrainError::NonFinite { .. }), Some(keeper)) = (&stepped, &mut keeper) {
            // All ranks find it, and leave their last checkpoint whole.
            keeper.settle()?;
        }
        let (report, (drawn, all)) = stepped?;
        (next, wishes_on) = (drawn, observer.stepped(&report).is_continue());
        let all = all?;
        let goes_on = if ranks.all_count() == 1 { wishes_on } else { all.goes_on };
        if let Some(keeper) = keeper.as_mut().filter(|_| all.is_written) {
            keeper.settle()?;
        }
        (progress.done, progress.loss) = (trainer.done(), None);
        let rise = if report.applied { losses.add(report.step, report.loss) } else { None };
        if let (Some(rise), Ok(after)) = (rise, &next) {
            let grown = trainer.growth((&judged_by, &initial), after)?;
            let remedy = recipe.remedy();
            observer.diverges(trainer.done(), &format!("{rise}{grown}; {remedy}"));
        }
        let looks =
            progress.done.is_multiple_of(recipe.evaluate_every) || progress.done == recipe.steps;
        if looks {
            let own = evaluator.evaluate_up_to(trainer.state_mut(), &validation, most)?;
            let evaluation = ranks.joined(own)?;
            observer.evaluated(progress.done, &evaluation);
            if !evaluation.loss().is_finite() {
                keeper.as_mut().map_or(Ok(()), Keeper::settle)?;
                let first = format!("the loss on the validation samples is {}", evaluation.loss());
                return Err(recipe.diverged(progress.done, first));
            }
            progress.loss = Some(evaluation.loss());
            if evaluation.loss() < progress.best_loss {
                (progress.best_loss, progress.stale) = (evaluation.loss(), 0);
                if recipe.early_stop.is_some() {
                    best = trainer.own_parameters()?;
                }
            } else {
                progress.stale += 1;
            }
        }
        if !goes_on {
            ending = Ending::Interrupted;
        } else if is_stale(&progress) {
            ending = Ending::Early;
        }
        let is_last = ending != Ending::Finished || progress.done == recipe.steps;
        if let Some(keeper) = keeper.as_mut().filter(|_| is_last || looks && all.is_due) {
            keeper.write(|| {
                let (state, best) = (trainer.state_parts()?, trainer.parts_of(&best));
                let run = RunFacts::of(progress, (recipe, &origin), &choices);
                Ok(PartFile { run, mesh: mesh.clone(), state, best })
            })?;
        }
    }
    keeper.as_mut().map_or(Ok(()), Keeper::settle)?;
    let has_best = recipe.early_stop.is_some() && progress.best_loss.is_finite();
    let (own, validation_loss) = match has_best {
        true => (best, Some(progress.best_loss)),
        false => (trainer.own_parameters()?, progress.loss),
    };
    let parameters = trainer.gathered(own)?;
    Ok(Fitted { parameters, validation_loss, progress, ending })
}

/// Identifies the origin of a run: the hash of its training samples and of its frozen weights,
/// which no checkpoint holds.
fn origin(train: &dyn Split, recipe: &Recipe, forward: &Graph) -> Result<String, TrainError> {
    let states = forward.states().iter().filter(|state| !recipe.trains(&state.name));
    let frozen: BTreeMap<&String, &StateDecl> = states.map(|state| (&state.name, state)).collect();
    if frozen.is_empty() {
        return train.hash();
    }
    let mut hash = Sha256::new();
    hash.update(train.hash()?);
    for (name, state) in frozen {
        hash.update(name);
        let value = initial_parameter(state, forward.ty(state.value), recipe.seed);
        hash.update(value.bytes());
    }
    Ok(hex(hash))
}

/// Properties that all ranks must share, a line each.
fn trained_by_all(run: &Fit<'_>, forward: &Graph, (origin, done): (&str, u64)) -> String {
    /// Bytes of each tensor that tell other weights.
    const ENOUGH: usize = 4096;
    let mut weights = Sha256::new();
    for state in forward.states() {
        let first = initial_elements(state, forward.ty(state.value), run.recipe.seed);
        weights.update(&state.name);
        weights.update(&first.bytes()[..first.bytes().len().min(ENOUGH)]);
    }
    let mut model = Sha256::new();
    model.update(forward.to_string());
    // A line for each field of the recipe: ranks name those that differ.
    let fields = run.recipe.fields().into_iter();
    let fields = fields.map(|(field, value)| format!("recipe, {field}: {value}"));
    let shards = match run.sharing.states {
        Shards::Nothing => "nothing",
        Shards::Optimizer => "the optimizer",
        Shards::Parameters => "optimizer and matrices",
    };
    let context = run.sharing.context.map(|exchange| exchange.to_string());
    let lines = [
        format!("data of SHA-256 {origin}"),
        format!("model of SHA-256 {}", hex(model)),
        format!("initial weights of SHA-256 {}", hex(weights)),
        format!("{done} steps done"),
        format!("checkpoints: {}", if run.checkpoint.is_some() { "yes" } else { "no" }),
        format!("shared out: {shards}"),
        format!("context by {}", context.as_deref().unwrap_or("the fastest way")),
    ];
    let version = format!("version {}", env!("CARGO_PKG_VERSION"));
    std::iter::once(version).chain(fields).chain(lines).collect::<Vec<_>>().join("\n")
}

/// The batches of a step: every sample once an epoch, in an order of its own each.
pub fn batches(split: &dyn Split, recipe: &Recipe, step: u64) -> Result<Vec<Batch>, TrainError> {
    part_of_batches(split, recipe, step, Ranks(None, Sharing::default()))
}

/// A rank's part of each of them.
fn part_of_batches(
    split: &dyn Split,
    recipe: &Recipe,
    step: u64,
    ranks: Ranks<'_>,
) -> Result<Vec<Batch>, TrainError> {
    let (batch, len) = (recipe.batch as u64, split.len());
    let of = |number: u64| {
        let samples = ranks.part(batch).map(|within| {
            let place = number * batch + within;
            let epoch = place / len;
            let [high, low] = [0, 1]
                .map(|word| philox::bits(recipe.seed, philox::site_of("epoch"), 2 * epoch + word));
            Shuffle::new(len, u64::from(high) << 32 | u64::from(low)).at(place % len)
        });
        split.batch(&samples.collect::<Vec<_>>())
    };
    let first = step * recipe.accumulate as u64;
    (first..first + recipe.accumulate as u64).map(of).collect()
}
