//! A mode whose codes are learnt: the trained model goes on learning for a short while, with
//! quantized weights; and the float model that learnt as long, which it is compared with.

use super::calibrate::calibrate;
use super::judge::bound;
use crate::Template;
use overdrive_bench::outcome::Failure;
use overdrive_ir::{Backend, Graph, Init, Tensor};
use overdrive_passes::{Quantization, Quantized};
use overdrive_train::data::Parts;
use overdrive_train::{Fit, Recipe, TrainError, fit, quantize_aware, tuning_of};

/// The template's graph, unbound as it was, trained further from the weights that it begins with and quantized; ranges are
/// seen on `batches`, which fit the template's own dimensions. The test samples of `parts` are not looked at.
///
/// # Errors
/// When weights are not finite, samples do not fit the model, or the back end cannot train it.
pub fn tune(
    (backend, template): (&dyn Backend, &Template),
    quantization: &Quantization,
    batches: &[Vec<Tensor>],
    (parts, seed): (&Parts, u64),
) -> Result<Quantized, Failure> {
    let bound = bound(template, &template.graph)?;
    let evidence = calibrate(backend, &bound, &quantization.statistics(), batches)?;
    let recipe = recipe(template, seed);
    let run = run((backend, &template.graph), &recipe, parts);
    let tuned = quantize_aware(&run, quantization, &evidence, &mut ()).map_err(failure)?;
    Ok(tuned.quantized)
}

/// The template's graph in float, trained further by the recipe of [`tune`]: the same steps on the
/// same samples. Without it the gain of further training would hide the loss of quantization.
///
/// # Errors
/// When samples do not fit the model, or the back end cannot train it.
pub fn trained_as_long(
    (backend, template): (&dyn Backend, &Template),
    (parts, seed): (&Parts, u64),
) -> Result<Graph, Failure> {
    let recipe = recipe(template, seed);
    let fitted = fit(&run((backend, &template.graph), &recipe, parts), &mut ()).map_err(failure)?;
    let learnt = |name: &str| Init::Value(fitted.parameters[name].clone());
    Ok(template.graph.clone().with_initial_values(|name, _| learnt(name)))
}

fn recipe(template: &Template, seed: u64) -> Recipe {
    Recipe { seed, ..tuning_of(&template.name) }
}

fn run<'a>((backend, model): (&'a dyn Backend, &'a Graph), recipe: &'a Recipe, parts: &'a Parts) -> Fit<'a> {
    let (train, validation) = (parts.train.as_ref(), parts.validation.as_ref());
    Fit { backend, model, recipe, train, validation, resume: None, checkpoint: None }
}

fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}
