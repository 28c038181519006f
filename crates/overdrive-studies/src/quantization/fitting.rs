//! Training of a study's models: on the parts of its data, with nothing kept.

use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph};
use overdrive_train::data::Parts;
use overdrive_train::{Fit, Recipe, TrainError};

pub(super) fn fit_of<'a>(
    (backend, model): (&'a dyn Backend, &'a Graph),
    recipe: &'a Recipe,
    parts: &'a Parts,
) -> Fit<'a> {
    let (train, validation) = (parts.train.as_ref(), parts.validation.as_ref());
    Fit {
        backend,
        model,
        recipe,
        train,
        validation,
        resume: None,
        checkpoint: None,
        memory_limit: None,
    }
}

pub(super) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}
