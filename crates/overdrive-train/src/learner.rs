//! The graph that learns: a model at a batch, with its adapters.

use crate::Recipe;
use overdrive_ir::{Graph, GraphError};
use overdrive_passes::{Lora, bind};

/// The model at a batch, if it has any, with the recipe's adapters.
///
/// # Errors
/// When the model has no layer that takes adapters.
pub fn learner(model: &Graph, recipe: &Recipe, batch: usize) -> Result<Graph, GraphError> {
    let forward = at_batch(model, batch)?;
    match recipe.lora {
        Some(lora) => lora.adapted(&forward, &Lora::layers(&forward)?),
        None => Ok(forward),
    }
}

/// The model with its named dimension bound, if it has one.
fn at_batch(model: &Graph, batch: usize) -> Result<Graph, GraphError> {
    if model.is_bound() {
        Ok(model.clone())
    } else {
        bind(model, &[("batch".to_owned(), batch)].into())
    }
}
