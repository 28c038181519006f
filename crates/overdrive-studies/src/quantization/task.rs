//! A model with its trained weights, the samples that calibrate it, and those that judge it.
//!
//! Invariant: what judges was seen neither in training nor in calibration.

use super::batches::calibration;
use super::fitting::failure;
use super::judge::bound;
use super::{apply, to_the_end, trained_as_long, tune};
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_formats::Tensors;
use overdrive_ir::{Backend, Graph, Init, State, Tensor};
use overdrive_models::BuiltInModel;
use overdrive_passes::{QuantizationMode, Quantized};
use overdrive_train::data::{Parts, Split, open};
use overdrive_train::{Evaluation, Evaluator, Fit, Recipe, fit, recipe_of, trained, tuning_of};
use std::cell::OnceCell;
use std::sync::Arc;

/// The split into training and judging samples, and the seed of the weights.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Trial {
    /// The fold that judges; a text has only fold 0.
    pub fold: usize,
    /// Seed of the weights and of the order of samples.
    pub seed: u64,
}

impl Trial {
    /// The one whose weights come with the program.
    pub const CARRIED: Self = Self { fold: 0, seed: 1 };
}

/// A trained model and its samples.
#[derive(Clone)]
pub struct Task {
    /// The model; its states begin as the trained weights.
    pub template: Template,
    /// The fold that judges.
    pub fold: usize,
    /// Calibration sees these training samples, in batches of the template's own size.
    pub seen: Vec<Vec<Tensor>>,
    /// The judge.
    pub held_out: Arc<dyn Split>,
    /// The samples that it learnt from, also for further training.
    parts: Parts,
    seed: u64,
    /// The model after further training without quantization, to compare with modes that learn.
    trained_as_long: OnceCell<Graph>,
}

impl Task {
    /// A built-in model that learns from `digits` or `text`, trained if no weights come with the
    /// program; calibration sees `batches` batches of `batch`.
    ///
    /// # Errors
    /// When the back end cannot train it, or there are fewer samples than that.
    pub fn trained(
        backend: &dyn Backend,
        model: &BuiltInModel,
        trial: Trial,
        [batches, batch]: [usize; 2],
    ) -> Result<Self, Failure> {
        let mut template = Template::built_in(model).map_err(|e| Failure::failed(e.to_string()))?;
        template.dimensions.insert("batch".to_owned(), batch);
        let data =
            open(if model.vocabulary.is_some() { "text" } else { "digits" }).map_err(failure)?;
        let parts = data.parts(&template.graph, trial.fold).map_err(failure)?;
        let carried = trained(model.name).filter(|_| trial == Trial::CARRIED);
        let weights = match carried {
            Some(weights) => weights,
            None => learn(backend, &template, &parts, trial.seed)?,
        };
        template.graph =
            template.graph.with_initial_values(|name, _| Init::Value(weights[name].clone()));
        let seen = calibration(&parts.train, batch, batches)?;
        let held_out = Arc::clone(&parts.test);
        let (fold, seed) = (trial.fold, trial.seed);
        Ok(Self { template, fold, seen, held_out, parts, seed, trained_as_long: OnceCell::new() })
    }

    /// The model in this mode: by calibration, or by training where its codes are learnt.
    ///
    /// # Errors
    /// When weights are not finite, or the back end cannot run or train a graph.
    pub fn apply(
        &self,
        backend: &dyn Backend,
        mode: &QuantizationMode,
    ) -> Result<Quantized, Failure> {
        let quantization = mode.quantization();
        if !mode.is_trained() {
            return apply(backend, &self.template, (mode.preparation, &quantization), &self.seen);
        }
        let learnt = (&self.parts, &self.tuning());
        tune((backend, &self.template), &quantization, &self.seen, learnt, &to_the_end)
    }

    /// The float model after the further training of the modes that learn; trained once.
    ///
    /// # Errors
    /// When the back end cannot train it.
    pub fn trained_as_long(&self, backend: &dyn Backend) -> Result<&Graph, Failure> {
        if let Some(known) = self.trained_as_long.get() {
            return Ok(known);
        }
        let graph =
            trained_as_long((backend, &self.template), (&self.parts, &self.tuning()), &to_the_end)?;
        Ok(self.trained_as_long.get_or_init(|| graph))
    }

    fn tuning(&self) -> Recipe {
        Recipe { seed: self.seed, ..tuning_of(&self.template.name) }
    }

    /// Evaluates `graph`, the template's or one made of it, on the held-out samples.
    ///
    /// # Errors
    /// When the back end cannot run it.
    pub fn evaluate(&self, backend: &dyn Backend, graph: &Graph) -> Result<Evaluation, Failure> {
        evaluate(backend, &self.template, graph, self.held_out.as_ref())
    }
}

/// Evaluates a graph with the template's interface, bound to its dimensions, on each sample of a
/// split.
///
/// # Errors
/// When the back end cannot run it, or samples do not fit.
pub fn evaluate(
    backend: &dyn Backend,
    template: &Template,
    graph: &Graph,
    split: &dyn Split,
) -> Result<Evaluation, Failure> {
    let bound = bound(template, graph)?;
    let mut state = State::initial(&bound, backend)?;
    let mut evaluator = Evaluator::new(backend, &bound, split.target()).map_err(failure)?;
    evaluator.evaluate(&mut state, split).map_err(failure)
}

fn learn(
    backend: &dyn Backend,
    template: &Template,
    parts: &Parts,
    seed: u64,
) -> Result<Tensors, Failure> {
    let recipe = Recipe { seed, ..recipe_of(&template.name) };
    let run = Fit::anew((backend, &template.graph), &recipe, parts);
    Ok(fit(&run, &mut ()).map_err(failure)?.parameters)
}
