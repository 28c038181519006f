//! `overdrive train`: a model from data; the folder that it leaves is a MODEL.

use super::output;
use crate::cli::Train;
use crate::devices;
use crate::failure::Failure;
use crate::invoked::{command_line, command_with};
use crate::model;
use crate::terminal::say;
use crate::training::{Watch, record};
use overdrive::bench::exit::Exit;
use overdrive::bench::report::to_json;
use overdrive::bench::results::Results;
use overdrive::files::{Place, Request};
use overdrive::formats::{ModelConfig, ModelFolder};
use overdrive::ir::Init;
use overdrive::passes::bind;
use overdrive::studies::Template;
use overdrive::train::data::{Parts, open};
use overdrive::train::{
    Checkpoint, EarlyStop, Ending, Evaluation, Fit, Recipe, TrainError, evaluate, fit, initial_parameters,
    recipe_of,
};
use overdrive_process::Stop;
use std::path::{Path, PathBuf};

pub(crate) fn train(arguments: &Train, stop: &Stop) -> Result<Exit, Failure> {
    let (place, checkpoint) = place(arguments)?;
    let template = model::load_to_train(&arguments.model)?.template()?;
    let recipe = recipe(arguments, &template);
    recipe.check().map_err(Failure::bad_input)?;
    let mut data = open(&arguments.data).map_err(failure)?;
    if let Some(tokenizer) = &arguments.tokenizer {
        data = data.encoded(tokenizer, template.vocabulary.unwrap_or(usize::MAX)).map_err(failure)?;
    }
    let parts = data.parts(&template.graph, usize::from(arguments.fold)).map_err(failure)?;
    let _whole = stop.heed();
    let earlier = match (arguments.resume, checkpoint.exists()) {
        (true, _) => Some(Checkpoint::read(&checkpoint).map_err(failure)?),
        (false, false) => None,
        (false, true) => {
            let file = checkpoint.display();
            let text = format!(
                "`{file}` is of an interrupted run: go on with --resume, or remove it to start again"
            );
            return Err(Failure::bad_input(text));
        }
    };
    let opened = devices::open(&arguments.machine)?;
    let mut results = Results::begin(command_line(), arguments.machine.seed);
    devices::describe_all(&mut results.environment, [&opened], &arguments.machine);
    let done = earlier.as_ref().map_or(0, |checkpoint| checkpoint.progress.done);
    let mut watch = Watch::start(&recipe, done, stop.clone());
    let run = Fit {
        backend: opened.backend.as_ref(),
        model: &template.graph,
        recipe: &recipe,
        train: parts.train.as_ref(),
        validation: parts.validation.as_ref(),
        resume: earlier.as_ref(),
        checkpoint: Some(&checkpoint),
    };
    let fitted = fit(&run, &mut watch).map_err(|error| unkept(error, &checkpoint, arguments))?;
    watch.finish();
    if fitted.ending == Ending::Interrupted {
        let (done, steps, file) = (fitted.progress.done, recipe.steps, checkpoint.display());
        return Err(Failure::interrupted(format!(
            "{done} of {steps} steps are done and kept in `{file}`; go on with: {}",
            again(arguments)
        )));
    }
    // States that no step changes, tables of integers say, are what they were.
    let mut states = initial_parameters(&template.graph, recipe.seed);
    states.extend(fitted.parameters.iter().map(|(name, tensor)| (name.clone(), tensor.clone())));
    let graph = template.graph.clone().with_initial_values(|name, _| Init::Value(states[name].clone()));
    let forward = bind(&graph, &[("batch".to_owned(), recipe.batch)].into()).map_err(Failure::harness)?;
    let test = evaluate(run.backend, &forward, &states, parts.test.as_ref()).map_err(failure)?;
    let config = ModelConfig {
        name: template.name.clone(),
        dimensions: template.dimensions.clone(),
        vocabulary: template.vocabulary,
        recipe: provenance(arguments, &recipe, &parts, &test).map_err(failure)?,
    };
    results.records.push(record(&opened, &template.name, &recipe, (&watch, &fitted, &test)));
    let model = ModelFolder { config, graph };
    place.fill(|folder| {
        model.write(folder).map_err(Failure::bad_input)?;
        std::fs::write(folder.join(output::RESULTS), to_json(&results)).map_err(Failure::harness)
    })?;
    std::fs::remove_file(&checkpoint).map_err(Failure::harness)?;
    say!("{} after {} steps: {}", template.name, fitted.progress.done, said(&test))?;
    say!("model: {}", arguments.out.display())?;
    Ok(Exit::Fine)
}

fn recipe(arguments: &Train, template: &Template) -> Recipe {
    let mut recipe = recipe_of(&template.name);
    recipe.precision = arguments.precision.into();
    recipe.seed = arguments.machine.seed;
    recipe.accumulate = arguments.accumulate as usize;
    recipe.early_stop = arguments.patience.map(|patience| EarlyStop { patience });
    recipe.batch = arguments.batch.map_or(recipe.batch, |batch| batch as usize);
    recipe.schedule.peak = arguments.lr.unwrap_or(recipe.schedule.peak);
    if let Some(steps) = arguments.steps {
        recipe.schedule.warmup = recipe.schedule.warmup.min(steps / 10);
        recipe.steps = steps;
    }
    recipe
}

/// Claims the folder; and the file of checkpoints beside it, which only the holder of that place
/// writes.
fn place(arguments: &Train) -> Result<(Place, PathBuf), Failure> {
    let path = arguments.out.as_path();
    let mut inputs = vec![Path::new(&arguments.model), Path::new(&arguments.data)];
    inputs.extend(arguments.tokenizer.as_deref());
    let request = Request { path, option: "-o", existing: arguments.replacing.into(), inputs: &inputs };
    let place = Place::folder(request, ModelFolder::CONTENTS).map_err(Failure::bad_input)?;
    // `.` has no name but that of the folder that it is.
    let path = if path.file_name().is_some() {
        path.to_owned()
    } else {
        path.canonicalize().map_err(Failure::harness)?
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok((place, path.with_file_name(format!("{name}.checkpoint.safetensors"))))
}

/// What the folder says of how the model came about.
fn provenance(
    arguments: &Train,
    recipe: &Recipe,
    parts: &Parts,
    test: &Evaluation,
) -> Result<std::collections::BTreeMap<String, serde_json::Value>, TrainError> {
    let splits = serde_json::json!({
        "train": parts.train.hash()?, "validation": parts.validation.hash()?, "test": parts.test.hash()?,
    });
    let entries = [
        ("command", command_line().into()),
        ("data", arguments.data.clone().into()),
        ("tokenizer", arguments.tokenizer.as_ref().map(|file| file.display().to_string()).into()),
        ("fold", arguments.fold.into()),
        ("splits_sha256", splits),
        ("training", serde_json::to_value(recipe).expect("a recipe is plain data")),
        ("test_loss_nats", test.loss().into()),
        ("test_accuracy", test.accuracy().into()),
        ("test_bits_per_byte", test.bits_per_byte().into()),
    ];
    let known = entries.into_iter().filter(|(_, value)| !value.is_null());
    Ok(known.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The figure of the test samples, in words.
fn said(test: &Evaluation) -> String {
    let samples = test.losses.len();
    match test.bits_per_byte() {
        Some(bits) => {
            format!("{bits:.4} bits per byte, perplexity {:.3}, of {samples} test windows", test.perplexity())
        }
        None => {
            let (percent, loss) = (100.0 * test.accuracy(), test.loss());
            format!("{percent:.2} % of {samples} test samples, loss {loss:.4}")
        }
    }
}

/// The command that goes on from the checkpoint.
fn again(arguments: &Train) -> String {
    command_with(&[], if arguments.resume { "" } else { "--resume" })
}

/// A failure of the loop. Where a file was not written, the checkpoint before it is whole.
fn unkept(error: TrainError, checkpoint: &Path, arguments: &Train) -> Failure {
    let unwritten = matches!(error, TrainError::File(_) | TrainError::Format(_) | TrainError::Io { .. });
    if !(unwritten && checkpoint.exists()) {
        return failure(error);
    }
    let file = checkpoint.display();
    Failure::bad_input(format!(
        "{error}. Earlier steps are kept in `{file}`; go on with: {}",
        again(arguments)
    ))
}

fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Backend(error) => devices::failure(error),
        TrainError::NonFinite { .. } => Failure::harness(error),
        _ => Failure::bad_input(error),
    }
}
