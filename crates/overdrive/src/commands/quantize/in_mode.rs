//! The model with all layers in one mode, by calibration or by training.

use super::chosen::{Chosen, refused};
use super::judged::Samples;
use super::published::rounded;
use super::subject::Subject;
use crate::failure::Failure;
use overdrive::ir::Backend;
use overdrive::passes::{Quantization, QuantizationMode};
use overdrive::studies::quantization::{Going, trained_as_long, tune};
use overdrive::train::{Recipe, tuning_of, tuning_of_published};

/// The model with all layers in one mode, made while it goes on.
pub(in crate::commands) fn in_mode(
    (backend, subject): (&dyn Backend, &Subject),
    samples: &Samples<'_>,
    (mode, quantization): (&QuantizationMode, Quantization),
    recipe: &Recipe,
    going: &Going<'_>,
) -> Result<Chosen, Failure> {
    let template = &subject.template;
    let how = (mode.preparation, &quantization);
    let (made, trained_as_long) = match (mode.is_trained(), &samples.parts) {
        (false, _) => (subject.apply(backend, how, &samples.seen, going).map_err(refused)?, None),
        (true, Some(parts)) => {
            let (model, learnt) = ((backend, template), (parts, recipe));
            let mut made =
                tune(model, &quantization, &samples.seen, learnt, going).map_err(refused)?;
            let mut float = trained_as_long(model, learnt, going).map_err(refused)?;
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

/// The recipe for further training in a mode that learns, with the user's number of steps if given.
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
