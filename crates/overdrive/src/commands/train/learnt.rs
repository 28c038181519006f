//! The trained model: how it scores on samples that it has not seen, and the folder that holds it.
//!
//! The scored model is the written one. Before both, adapters are merged, and weights are rounded
//! to the types of their original files.

use super::failure::failure;
use super::task::TrainingRun;
use crate::cli::Train;
use crate::failure::Failure;
use crate::invoked::command_line;
use crate::progress::over;
use crate::terminal::note;
use overdrive::formats::{ModelConfig, ModelFolder, Tensors};
use overdrive::ir::{Backend, Graph, Init};
use overdrive::passes::{Lora, bind};
use overdrive::studies::pretrained::Pretrained;
use overdrive::train::data::Target;
use overdrive::train::{
    Evaluation, Recipe, TrainError, evaluate_while, initial_parameter, initial_parameters,
};
use overdrive_process::Stop;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Names of the adapters, and of the record of training, in the folder of a published model.
pub(super) const ADAPTER: &str = "adapter";
pub(super) const TRAINING: &str = "training.json";

/// A task whose model has learnt.
pub(super) struct Learnt {
    pub(super) task: TrainingRun,
    /// The trained tensors: all parameters, or adapters.
    trained: Tensors,
    model: LearntForm,
}

/// A model that can be written.
enum LearntForm {
    /// One of ours: its graph, whose states begin as what was learnt.
    Ours(Graph),
    Published(Box<Pretrained>),
}

impl Learnt {
    /// The task's model with these parameters.
    pub(super) fn new(mut task: TrainingRun, trained: Tensors) -> Result<Self, Failure> {
        let merged = match task.recipe.lora {
            Some(lora) => {
                let layers = Lora::layers(&task.model).map_err(Failure::harness)?;
                let merged = lora.merged(&task.model, &layers, &trained);
                let mut merged = merged.map_err(Failure::harness)?;
                let beside = trained.iter().filter(|(name, _)| !Lora::is_adapter(name));
                merged.extend(beside.map(|(name, weight)| (name.clone(), weight.clone())));
                Some(merged)
            }
            None => None,
        };
        let weights = merged.as_ref().unwrap_or(&trained);
        let model = match task.published.take() {
            Some(published) => LearntForm::Published(Box::new(published.retrained(weights))),
            None => {
                // States that no step changes, tables of integers say, are what they were.
                let (graph, seed) = (&task.template.graph, task.recipe.seed);
                let mut states = graph.states().iter();
                LearntForm::Ours(graph.clone().with_initial_values(|name, ty| {
                    let state = states.next().expect("asked once for each, in their order");
                    let learnt = weights.get(name).cloned();
                    // States that no step changes, tables of integers say, are what they were.
                    Init::Value(learnt.unwrap_or_else(|| initial_parameter(state, ty, seed)))
                }))
            }
        };
        Ok(Self { task, trained, model })
    }

    /// Evaluates it on the test samples; `None` if a stop is requested meanwhile.
    pub(super) fn score(
        &self,
        backend: &dyn Backend,
        stop: &Stop,
    ) -> Result<Option<Evaluation>, Failure> {
        let graph = match &self.model {
            LearntForm::Ours(graph) => graph.clone(),
            LearntForm::Published(model) => model.template().map_err(Failure::harness)?.graph,
        };
        score(&self.task, backend, &graph, stop)
    }

    /// Writes it to a folder, with what a command or a user should know of how it came about.
    pub(super) fn write(
        &self,
        folder: &Path,
        arguments: &Train,
        scores: TestScores<'_>,
    ) -> Result<(), Failure> {
        let recipe = provenance(arguments, &self.task, scores).map_err(failure)?;
        let template = &self.task.template;
        match &self.model {
            LearntForm::Ours(graph) => {
                let config = ModelConfig {
                    name: template.name.clone(),
                    dimensions: template.dimensions.clone(),
                    vocabulary: template.vocabulary,
                    columns: template.columns.clone(),
                    recipe,
                };
                ModelFolder { config, graph: graph.clone() }
                    .write(folder)
                    .map_err(Failure::bad_input)
            }
            LearntForm::Published(model) => {
                model.write(folder).map_err(Failure::bad_input)?;
                if let (true, Some(lora)) = (arguments.adapter, self.task.recipe.lora) {
                    let layers = Lora::layers(&self.task.model).map_err(Failure::harness)?;
                    let base = arguments.model.as_deref().unwrap_or_default();
                    let base = std::fs::canonicalize(base).map_err(Failure::harness)?;
                    let (folder, base) = (folder.join(ADAPTER), base.display().to_string());
                    let written =
                        model.write_adapters(&folder, (lora, &layers), &self.trained, &base);
                    written.map_err(Failure::bad_input)?;
                }
                let text = serde_json::to_string_pretty(&recipe).expect("plain data") + "\n";
                std::fs::write(folder.join(TRAINING), text).map_err(Failure::harness)
            }
        }
    }
}

/// How a model does on the test samples; before, too, where it had learnt something.
#[derive(Copy, Clone)]
pub(super) struct TestScores<'a> {
    pub(super) before: Option<&'a Evaluation>,
    pub(super) after: &'a Evaluation,
}

impl TestScores<'_> {
    /// In words.
    pub(super) fn said(self) -> String {
        let samples = self.after.losses.len();
        let of_text = |test: &Evaluation, bits: f64| {
            format!("{bits:.4} bits per byte, perplexity {:.3}", test.perplexity())
        };
        match (self.after.bits_per_byte(), self.before) {
            (Some(bits), None) => {
                format!("{}, of {samples} test windows", of_text(self.after, bits))
            }
            (Some(bits), Some(before)) => {
                let earlier = of_text(before, before.bits_per_byte().unwrap_or(f64::NAN));
                let now = of_text(self.after, bits);
                format!("{now}, of {samples} test windows; before: {earlier}")
            }
            (None, before) => {
                let now = format!("{} of {samples} test samples", of_labels(self.after));
                let before =
                    before.map_or(String::new(), |test| format!("; before: {}", of_labels(test)));
                let loss = match self.after.target() {
                    Target::Classes => format!(", loss {:.4}", self.after.loss()),
                    Target::Quantity => String::new(),
                };
                format!("{now}{loss}{before}")
            }
        }
    }
}

/// How often the label was hit, or how far quantities were off.
fn of_labels(test: &Evaluation) -> String {
    if test.target() == Target::Classes {
        return format!("{:.2} %", 100.0 * test.accuracy());
    }
    let explained = test.explained().map_or(String::new(), |share| format!(", R² {share:.4}"));
    format!("off by {:.4} (root mean square){explained}", test.loss().sqrt())
}

/// Evaluates a graph with the task's interface on the test samples, from its initial states.
/// `None` if a stop is requested meanwhile.
pub(super) fn score(
    task: &TrainingRun,
    backend: &dyn Backend,
    graph: &Graph,
    stop: &Stop,
) -> Result<Option<Evaluation>, Failure> {
    let sizes = task.sizes();
    let forward = if graph.is_bound() {
        graph.clone()
    } else {
        bind(graph, &sizes).map_err(Failure::harness)?
    };
    let states = initial_parameters(&forward, task.recipe.seed);
    let test = task.parts.test.as_ref();
    note!("scoring {} test samples", test.len());
    let scored = over("test samples", |tell| {
        evaluate_while((backend, &forward), &states, test, &mut |done| {
            tell(done as usize, test.len() as usize);
            if stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    scored.map_err(failure)
}

/// The provenance of the model, for its folder.
fn provenance(
    arguments: &Train,
    task: &TrainingRun,
    scores: TestScores<'_>,
) -> Result<BTreeMap<String, serde_json::Value>, TrainError> {
    let (parts, recipe): (_, &Recipe) = (&task.parts, &task.recipe);
    let splits = serde_json::json!({
        "train": parts.train.hash()?, "validation": parts.validation.hash()?,
        "test": parts.test.hash()?,
    });
    let entries = [
        ("command", command_line().into()),
        ("data", arguments.data.clone().into()),
        ("tokenizer", arguments.tokenizer.as_ref().map(|file| file.display().to_string()).into()),
        ("fold", arguments.fold.into()),
        ("splits_sha256", splits),
        ("training", serde_json::to_value(recipe).expect("a recipe is plain data")),
        ("test_bits_per_byte", scores.after.bits_per_byte().into()),
    ];
    let (after, before) = (scores.after, scores.before);
    let of_target = match after.target() {
        Target::Classes => vec![
            ("test_loss_nats", after.loss().into()),
            ("test_accuracy", after.accuracy().into()),
            ("test_loss_nats_before", before.map(Evaluation::loss).into()),
            ("test_accuracy_before", before.map(Evaluation::accuracy).into()),
        ],
        Target::Quantity => vec![
            ("test_mean_squared_error", after.loss().into()),
            ("test_r_squared", after.explained().into()),
            ("test_mean_squared_error_before", before.map(Evaluation::loss).into()),
        ],
    };
    let entries = entries.into_iter().chain(of_target);
    let known = entries.filter(|(_, value)| !value.is_null());
    Ok(known.map(|(name, value)| (name.to_owned(), value)).collect())
}
