//! What was chosen, and the calls that every way to choose it makes.

use super::judged::Samples;
use super::published::rounded;
use super::subject::Subject;
use crate::cli::Quantize;
use crate::failure::Failure;
use crate::progress;
use overdrive::bench::rules::Rules;
use overdrive::ir::{Backend, Graph, Tensor};
use overdrive::passes::{Quantization, QuantizationMode, Quantized};
use overdrive::studies::quantization::{outputs_told, trained_as_long, tune};
use overdrive::train::{Recipe, tuning_of, tuning_of_published};

/// A mode, or a mix of modes, with the model that it made.
pub(in crate::commands) struct Chosen {
    pub(in crate::commands) name: String,
    pub(in crate::commands) quantization: Quantization,
    pub(in crate::commands) made: Quantized,
    /// Of a mode that learns: the float model after as many steps on the same samples.
    pub(in crate::commands) trained_as_long: Option<Graph>,
}

/// The model with all layers in one mode.
pub(in crate::commands) fn in_mode(
    (backend, subject): (&dyn Backend, &Subject),
    samples: &Samples<'_>,
    (mode, quantization): (&QuantizationMode, Quantization),
    recipe: &Recipe,
) -> Result<Chosen, Failure> {
    let template = &subject.template;
    let how = (mode.preparation, &quantization);
    let (made, trained_as_long) = match (mode.is_trained(), &samples.parts) {
        (false, _) => (subject.apply(backend, how, &samples.seen).map_err(refused)?, None),
        (true, Some(parts)) => {
            let (model, learnt) = ((backend, template), (parts, recipe));
            let mut made = tune(model, &quantization, &samples.seen, learnt).map_err(refused)?;
            let mut float = trained_as_long(model, learnt).map_err(refused)?;
            if let Some(model) = subject.published() {
                made.graph = rounded(model, made.graph);
                float = rounded(model, float);
            }
            (made, Some(float))
        }
        (true, None) => return Err(unlabelled(mode, samples.source)),
    };
    Ok(Chosen { name: mode.name.to_owned(), quantization, made, trained_as_long })
}

/// A mode that learns was given nothing to learn from.
fn unlabelled(mode: &QuantizationMode, found: &str) -> Failure {
    Failure::bad_input(format!(
        "mode `{}` learns: expected labelled samples, --data digits, text or a file with labels, \
         found {found}",
        mode.name
    ))
}

/// How a mode that learns goes on training: for so many steps, if the user says so.
pub(in crate::commands) fn recipe(subject: &Subject, (steps, seed): (Option<u64>, u64)) -> Recipe {
    let recipe = match subject.published() {
        Some(_) => tuning_of_published(),
        None => tuning_of(&subject.template.name),
    };
    let steps = steps.unwrap_or(recipe.steps);
    let mut schedule = recipe.schedule;
    schedule.warmup = schedule.warmup.min(steps / 10);
    Recipe { seed, steps, schedule, ..recipe }
}

/// How long to sample latencies.
pub(super) fn rules(arguments: &Quantize) -> Rules {
    match arguments.trials {
        Some(trials) => Rules::full().with_trials(5, trials as usize),
        None => Rules::full(),
    }
}

/// What a study refuses, as bad input.
pub(super) fn refused(reason: overdrive::bench::failure::Failure) -> Failure {
    Failure::bad_input(reason.reason)
}

/// What fails in a study, as a fault of ours.
pub(super) fn harness(reason: overdrive::bench::failure::Failure) -> Failure {
    Failure::harness(reason.reason)
}

/// The outputs of a model on held-out batches, with how far that is.
pub(in crate::commands) fn compared(
    backend: &dyn Backend,
    (name, graph): (&str, &Graph),
    batches: &[Vec<Tensor>],
) -> Result<Vec<Vec<Tensor>>, Failure> {
    progress::over(&format!("outputs of the {name} model"), |done| {
        outputs_told(backend, graph, batches, done)
    })
    .map_err(harness)
}
