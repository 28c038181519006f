//! Training of the gates that choose tiles of attention, from the model's own attention.
//!
//! The step is that of [`AttentionGate::distilled`](overdrive_passes::AttentionGate::distilled). It
//! reads inputs alone: labels are not needed. Invariant: no weight of the model changes.

use crate::data::Split;
use crate::learner::learner;
use crate::{Observer, Recipe, TrainError, Trainer, batches, initial_parameters};
use overdrive_formats::Tensors;
use overdrive_ir::{Backend, Graph, Tuning};

/// Trains the recipe's gates for a model whose states begin as its weights. Returns the states of
/// the gates; `None` if the observer ended the run.
///
/// # Errors
/// When the recipe has no gate, the model has no attention of several tiles, or the loss stops
/// being finite.
pub fn distil_gate(
    (backend, model): (&dyn Backend, &Graph),
    recipe: &Recipe,
    texts: &dyn Split,
    observer: &mut dyn Observer,
) -> Result<Option<Tensors>, TrainError> {
    let Some(gate) = recipe.gate else {
        let remedy = "start from `gate_training`";
        return Err(TrainError::invalid("recipe, gate", "a gate", "none", remedy));
    };
    let graph = gate.distilled(&learner(model, recipe, recipe.batch)?)?;
    let initial = initial_parameters(&graph, recipe.seed);
    let mut trainer = Trainer::new(backend, &graph, recipe, &initial, &Tuning::default())?;
    observer.planned(trainer.plan(), &trainer.memory(), trainer.flops());
    while trainer.done() < recipe.steps {
        let report = trainer.step(&batches(texts, recipe, trainer.done())?)?;
        if observer.stepped(&report).is_break() {
            return Ok(None);
        }
    }
    trainer.parameters().map(Some)
}
