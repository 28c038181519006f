//! `overdrive train`: a model from data; the folder that it leaves is a MODEL.

mod failure;
mod gate;
mod learnt;
mod optimization;
mod tabular;
mod task;

use super::output;
use super::ranks::{self, Launched, Rank};
use crate::asked_attention::{Changed, note_left_behind};
use crate::cli::Train;
use crate::failure::Failure;
use crate::invoked::{command_line, command_with};
use crate::terminal::{note, say};
use crate::training::{Watch, record};
use crate::{devices, model};
use failure::failure;
use learnt::{ADAPTER, Learnt, TestScores, score};
use overdrive::bench::exit::Exit;
use overdrive::bench::json::to_json;
use overdrive::bench::results::Results;
use overdrive::files::{Place, PlaceRequest};
use overdrive::formats::{ModelFolder, huggingface};
use overdrive::ir::Mesh;
use overdrive::train::{
    Checkpoint, DATA, Ending, Fit, Fitted, Recipe, Shards, Sharing, TrainError, fit,
};
use overdrive_process::Stop;
use std::path::{Path, PathBuf};
use task::TrainingRun;

pub(crate) fn train(arguments: &Train, stop: &Stop) -> Result<Exit, Failure> {
    if let Some(tile) = arguments.gate {
        check_alone(arguments)?;
        return gate::train(arguments, tile as usize, place(arguments)?, stop);
    }
    // Without `--mesh` each rank learns from its part of the batch.
    let options = (&arguments.ranks, &arguments.machine, DATA);
    ranks::run(options, stop, |launched| train_alone_or_as(launched, arguments, stop))
}

/// The whole run, or that of one rank.
fn train_alone_or_as(
    launched: Option<Launched>,
    arguments: &Train,
    stop: &Stop,
) -> Result<Exit, Failure> {
    if launched.is_none() {
        check_alone(arguments)?;
    }
    // First of all, so that the others hear of whatever fails here.
    let rank = launched.map(Launched::join).transpose()?;
    let is_first = rank.as_ref().is_none_or(Rank::is_first);
    let place = is_first.then(|| place(arguments)).transpose()?;
    if let (true, Some(model)) = (is_first, &arguments.model) {
        note_left_behind(model, Changed::Trained(&arguments.out));
    }
    let stages = arguments.ranks.mesh.as_ref().map_or(1, |mesh| mesh.size(&Mesh::PIPELINE.into()));
    if is_first && stages > arguments.accumulate as usize {
        note!(
            "note: {stages} stages wait for each other, since a step has {} of their batches; \
             --accumulate with several times {stages} keeps all of them busy",
            arguments.accumulate
        );
    }
    let checkpoint = checkpoint(&arguments.out)?;
    let task = TrainingRun::open(arguments)?;
    let (recipe, parts) = (&task.recipe, &task.parts);
    let _whole = stop.heed();
    let kept = kept(&checkpoint);
    let earlier = match (arguments.resume, Checkpoint::is_at(&kept)) {
        (true, false) => {
            let folder = kept.display();
            let text = format!(
                "--resume: expected a checkpoint in `{folder}`, found none, so there is nothing to \
                 go on from; leave out --resume to start"
            );
            return Err(Failure::bad_input(text));
        }
        (true, true) => Some(Checkpoint::read(&kept).map_err(failure)?),
        (false, true) if is_first => {
            let file = kept.display();
            let text = format!(
                "`{file}` is of an interrupted run: go on with --resume, or remove it to start \
                 again"
            );
            return Err(Failure::bad_input(text));
        }
        (false, _) => None,
    };
    let opened = devices::open_as(&arguments.machine, rank.as_ref().map(Rank::place))?;
    if let Some(rank) = &rank {
        rank.same_kind(opened.backend.name())?;
    }
    let mut results = Results::begin(command_line(), arguments.machine.seed);
    devices::describe_all(&mut results.environment, [&opened], &arguments.machine);
    let done = earlier.as_ref().map_or(0, |checkpoint| checkpoint.progress.done);
    let count = rank.as_ref().map_or(1, |rank| rank.launch.size);
    let steps = recipe.steps;
    let interrupted = |done, but| interrupted((done, steps), &checkpoint, but, arguments);
    let backend = opened.backend.as_ref();
    let had_learnt = task.published.as_ref().is_some_and(|published| !published.is_new());
    let before = match had_learnt && is_first {
        true => Some(
            score(&task, backend, &task.template.graph, stop)?
                .ok_or_else(|| interrupted(done, ""))?,
        ),
        false => None,
    };
    let mut watch = Watch::start((&opened, count), recipe, done, stop.clone());
    let run = Fit {
        backend,
        model: &task.model,
        recipe,
        train: parts.train.as_ref(),
        validation: &parts.validation,
        resume: earlier.as_ref(),
        checkpoint: Some(&checkpoint),
        memory_limit: arguments.memory_limit,
        ranks: rank.as_ref().map(|rank| rank.communicator.as_ref()),
        sharing: Sharing {
            states: arguments.shard.map_or(Shards::Nothing, Shards::from),
            context: arguments.context,
        },
    };
    let mut fitted =
        fit(&run, &mut watch).map_err(|error| unkept(error, &checkpoint, arguments))?;
    watch.finish();
    if let Some(rank) = &rank {
        rank.communicator.leave();
    }
    let Some(place) = place else {
        let interrupted = fitted.ending == Ending::Interrupted;
        return Ok(if interrupted { Exit::Interrupted } else { Exit::Fine });
    };
    let done = fitted.progress.done;
    if fitted.ending == Ending::Interrupted {
        return Err(interrupted(done, ""));
    }
    let learnt = Learnt::new(task, std::mem::take(&mut fitted.parameters))?;
    let Some(test) = learnt.score(backend, stop)? else {
        return Err(interrupted(done, ", but the model is not scored and not written"));
    };
    let scores = TestScores { before: before.as_ref(), after: &test };
    let (name, recipe) = (&learnt.task.template.name, &learnt.task.recipe);
    let mesh = rank.as_ref().map(|rank| rank.communicator.mesh());
    results.records.push(record(&opened, (name, recipe, mesh), (&watch, &fitted, &test)));
    let filled = place.fill(|folder| {
        learnt.write(folder, arguments, scores)?;
        let results_file = folder.join(output::RESULTS);
        std::fs::write(&results_file, to_json(&results)).map_err(|source| {
            let path = results_file.clone();
            Failure::harness(TrainError::Io { path, action: "write", source })
        })
    });
    if let Err(failure) = filled {
        let file = kept.display();
        let (again, kept) = (again(arguments), format!("All steps are kept in `{file}`"));
        return Err(failure.and(format!("{kept}; once there is room, go on with: {again}")));
    }
    for kept in [&checkpoint, &kept] {
        Checkpoint::remove(kept).map_err(Failure::harness)?;
    }
    say!("{name} after {done} steps: {}", scores.said())?;
    if let Some(kept) = kept_of_earlier(recipe, &fitted) {
        say!("{kept}")?;
    }
    if let Some(speed) = watch.speed() {
        say!("speed: {speed}")?;
    }
    say!("model: {}", arguments.out.display())?;
    if arguments.adapter {
        say!("adapter: {}", arguments.out.join(ADAPTER).display())?;
    }
    Ok(Exit::Fine)
}

/// Which weights were kept, where they are not the last.
fn kept_of_earlier(recipe: &Recipe, fitted: &Fitted) -> Option<String> {
    let (best, stale) = (fitted.progress.best_loss, fitted.progress.stale);
    let looks = if stale == 1 { "1 look".to_owned() } else { format!("{stale} looks") };
    recipe.early_stop.filter(|_| stale > 0 && best.is_finite())?;
    Some(match fitted.ending {
        Ending::Early => format!(
            "stopped early: no lower validation loss in {looks}; kept the weights of {best:.4}"
        ),
        _ => format!("weights: those of the lowest validation loss, {best:.4}, {looks} earlier"),
    })
}

/// Errs where an option says how several ranks share something.
fn check_alone(arguments: &Train) -> Result<(), Failure> {
    let of_ranks = [
        arguments.shard.is_some().then_some("--shard"),
        arguments.compress.is_some().then_some("--compress"),
        arguments.context.is_some().then_some("--context"),
    ];
    match of_ranks.into_iter().flatten().next() {
        None => Ok(()),
        Some(option) => Err(Failure::bad_input(format!(
            "{option}: expected several ranks, found one; add --nproc N, or start with a launcher"
        ))),
    }
}

/// Claims the folder; only the holder of that place writes the list of checkpoints beside it.
fn place(arguments: &Train) -> Result<Place, Failure> {
    let path = arguments.out.as_path();
    let mut inputs = vec![Path::new(&arguments.data)];
    inputs.extend(arguments.model.as_deref().map(Path::new));
    inputs.extend(arguments.tokenizer.as_deref());
    inputs.extend(arguments.recipe.as_deref());
    let request =
        PlaceRequest { path, option: "-o", existing: arguments.replacing.into(), inputs: &inputs };
    let contents = match arguments.model.as_deref().is_some_and(model::is_trained_as_published) {
        true => huggingface::CONTENTS,
        false => ModelFolder::CONTENTS,
    };
    Place::folder(request, contents).map_err(Failure::bad_input)
}

/// The folder of checkpoints of a run that writes this folder.
fn checkpoint(path: &Path) -> Result<PathBuf, Failure> {
    // `.` has no file name; the folder that it means has one.
    let path = if path.file_name().is_some() {
        path.to_owned()
    } else {
        path.canonicalize().map_err(Failure::harness)?
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(path.with_file_name(format!("{name}.checkpoint")))
}

/// The checkpoint to go on from: the folder, or the file of an earlier version.
fn kept(checkpoint: &Path) -> PathBuf {
    let file = checkpoint.with_extension("checkpoint.safetensors");
    if file.is_file() && !Checkpoint::is_at(checkpoint) { file } else { checkpoint.to_owned() }
}

/// The command that continues from the checkpoint.
fn again(arguments: &Train) -> String {
    command_with(&[], if arguments.resume { "" } else { "--resume" })
}

/// The end of a run that was asked to stop, and what is missing beside its steps.
fn interrupted(
    (done, steps): (u64, u64),
    checkpoint: &Path,
    missing: &str,
    arguments: &Train,
) -> Failure {
    if done == 0 {
        return Failure::interrupted("no step is done, and nothing was written");
    }
    let (file, again) = (kept(checkpoint), again(arguments));
    Failure::interrupted(format!(
        "{done} of {steps} steps are done and kept in `{}`{missing}; go on with: {again}",
        file.display()
    ))
}

/// A failure of the loop. If a file was not written, the checkpoint before it is whole.
fn unkept(error: TrainError, checkpoint: &Path, arguments: &Train) -> Failure {
    let unwritten =
        matches!(error, TrainError::File(_) | TrainError::Format(_) | TrainError::Io { .. });
    let kept = kept(checkpoint);
    if !(unwritten && Checkpoint::is_at(&kept)) {
        return failure(error);
    }
    let file = kept.display();
    Failure::bad_input(format!(
        "{error}. Earlier steps are kept in `{file}`; go on with: {}",
        again(arguments)
    ))
}
