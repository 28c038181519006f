//! A mode whose codes are learnt: the trained model goes on learning for a short while, with quantized weights.

use super::calibrate::calibrate;
use super::judge::bound;
use crate::Template;
use overdrive_bench::outcome::Failure;
use overdrive_ir::{Backend, Tensor};
use overdrive_passes::{Quantization, Quantized};
use overdrive_train::data::Parts;
use overdrive_train::{Fit, Recipe, TrainError, quantize_aware, tuning_of};

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
    let recipe = Recipe { seed, ..tuning_of(&template.name) };
    let run = Fit {
        backend,
        model: &template.graph,
        recipe: &recipe,
        train: parts.train.as_ref(),
        validation: parts.validation.as_ref(),
        resume: None,
        checkpoint: None,
    };
    let tuned = quantize_aware(&run, quantization, &evidence, &mut ()).map_err(|error| match error {
        TrainError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    })?;
    Ok(tuned.quantized)
}
