//! A mode whose codes are learnt: the trained model goes on learning for a short while, with
//! quantized weights. It is compared with the float model that learnt as long.

use super::calibrate::calibrate;
use super::fitting::failure;
use super::going::{Asks, Going};
use super::judge::bound;
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, Init, Tensor};
use overdrive_passes::{Quantization, Quantized, QuantizedLayer, Scheme, declare};
use overdrive_train::data::Parts;
use overdrive_train::{Fit, Recipe, fit, quantize_aware};
use std::collections::BTreeMap;

/// The template's graph, unbound as it was, trained further from the weights that it begins with
/// and quantized. Ranges are seen on `batches`, which fit the template's own dimensions. The test
/// samples of `parts` are not looked at.
///
/// # Errors
/// When weights are not finite, samples do not fit the model, or the back end cannot train it. Also
/// when it does not go on after a step.
pub fn tune(
    (backend, template): (&dyn Backend, &Template),
    quantization: &Quantization,
    batches: &[Vec<Tensor>],
    (parts, recipe): (&Parts, &Recipe),
    going: &Going<'_>,
) -> Result<Quantized, Failure> {
    let bound = bound(template, &template.graph)?;
    let evidence = calibrate(backend, &bound, &quantization.statistics(), batches)?;
    let model = learning(template, recipe)?;
    let run = Fit::anew((backend, &model), recipe, parts);
    let mut asks = Asks::of(going);
    let tuned = quantize_aware(&run, quantization, &evidence, &mut asks).map_err(failure)?;
    asks.answer()?;
    match model.is_bound() {
        true => unbound(template, tuned.quantized),
        false => Ok(tuned.quantized),
    }
}

/// The template's graph in float, trained further by the recipe of [`tune`]: the same steps on the
/// same samples. Without it the gain of further training would hide the loss of quantization.
///
/// # Errors
/// When samples do not fit the model, the back end cannot train it, or it does not go on after a
/// step.
pub fn trained_as_long(
    (backend, template): (&dyn Backend, &Template),
    (parts, recipe): (&Parts, &Recipe),
    going: &Going<'_>,
) -> Result<Graph, Failure> {
    let model = learning(template, recipe)?;
    let mut asks = Asks::of(going);
    let fitted = fit(&Fit::anew((backend, &model), recipe, parts), &mut asks).map_err(failure)?;
    asks.answer()?;
    let learnt = |name: &str| Init::Value(fitted.parameters[name].clone());
    Ok(template.graph.clone().with_initial_values(|name, _| learnt(name)))
}

/// The graph that learns: the template's, or, where its windows of text have no length yet, the
/// same with sizes.
fn learning(template: &Template, recipe: &Recipe) -> Result<Graph, Failure> {
    let mut sizes = template.dimensions.clone();
    if sizes.keys().all(|name| name == "batch") {
        return Ok(template.graph.clone());
    }
    sizes.insert("batch".to_owned(), recipe.batch);
    template.graph_of(&sizes).map_err(|e| Failure::failed(e.to_string()))
}

/// Turns the result for the bound graph into one for every size.
fn unbound(template: &Template, mut made: Quantized) -> Result<Quantized, Failure> {
    let scheme = |layer: &QuantizedLayer| Some((layer.name.clone(), layer.scheme?));
    let schemes: BTreeMap<String, Scheme> = made.layers.iter().filter_map(scheme).collect();
    let graph = declare(&template.graph, &schemes).map_err(|e| Failure::failed(e.to_string()))?;
    let begin: BTreeMap<&str, &Init> =
        made.graph.states().iter().map(|state| (state.name.as_str(), &state.init)).collect();
    made.graph = graph.with_initial_values(|name, _| begin[name].clone());
    Ok(made)
}
