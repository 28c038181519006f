//! Steps of one model at one batch that are compared: their graphs, and what judges them.

use super::language::{self, IDS, of_graph, of_training};
use crate::Workload;
use overdrive_bench::case;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::{Items, Work};
use overdrive_ir::plan::Space;
use overdrive_ir::{Builder, DType, Graph, Plan, Tensor, gradients};
use overdrive_train::{Formats, Parameters, Recipe, learner, parameters, training_step};
use serde_json::{Value, json};

/// Small enough that a hundred steps on one batch change little, which they would learn by heart.
const LEARNING_RATE: f64 = 1e-4;
/// Roundings that two orders of one sum may differ by.
const ROUNDINGS: f64 = 4.0;
/// Codes of e4m3 are off by half of 2^-3 at most. Sums of hundreds of them are off by less.
const OF_CODES: f64 = 1.0 / 16.0;

/// A model at a batch.
#[derive(Copy, Clone)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) batch: usize,
}

/// A way to take its step.
#[derive(Clone)]
pub(super) struct Way {
    /// Name of the variant; none where the number format says it all.
    pub(super) variant: Option<String>,
    pub(super) recipe: Recipe,
    pub(super) limit: Option<Limit>,
    /// Whether all states that can wait on the host do, and the step waits for each copy.
    pub(super) blocks: bool,
}

/// The memory that a plan may take, beside what the first way takes.
#[derive(Copy, Clone)]
pub(super) enum Limit {
    /// So much of its arena, and all of its states.
    OfArena(f64),
    /// So much of all.
    OfAll(f64),
}

impl Limit {
    pub(super) fn name(self) -> String {
        match self {
            Self::OfArena(share) => format!("{:.0} % of the arena", 100.0 * share),
            Self::OfAll(share) => format!("{:.0} % of all memory", 100.0 * share),
        }
    }

    /// In bytes, where `first` is the plan of the first way.
    pub(super) fn bytes(self, first: &Plan) -> u64 {
        let all = first.peak_bytes(Space::MAIN);
        let arena = first.arena_bytes.first().map_or(0, |&bytes| bytes as u64);
        let (share, of) = match self {
            Self::OfArena(share) => (share, arena),
            Self::OfAll(share) => (share, all),
        };
        all - ((1.0 - share) * of as f64) as u64
    }
}

impl Way {
    /// Number formats by their name.
    pub(super) fn in_formats(name: &'static str) -> Self {
        let formats = Formats::named(name).expect("cases name known formats").clone();
        let variant = formats.float8.is_some().then(|| name.to_owned());
        Self { variant, recipe: Recipe::default().in_formats(formats), limit: None, blocks: false }
    }

    /// The same under a name of its own.
    pub(super) fn named(self, variant: impl Into<String>) -> Self {
        Self { variant: Some(variant.into()), ..self }
    }

    /// How far loss and norm may lie from their definition, as a share.
    pub(super) fn rtol(&self) -> f64 {
        // No format of contractions is coarser than bf16.
        let coarsest = match self.recipe.parameters {
            Parameters::Stochastic => DType::BF16,
            Parameters::F32 | Parameters::Masters => self.recipe.precision,
        };
        let rounding = ROUNDINGS * coarsest.epsilon().max(1e-5);
        if self.recipe.float8.is_some() { rounding.max(OF_CODES) } else { rounding }
    }
}

impl Model {
    /// The work of a recipe. Adapters are other work than all parameters.
    pub(super) fn key(self, recipe: &Recipe) -> case::Workload {
        let dimensions = [("B", self.batch as u64), ("T", language::tokens(self.name) as u64)];
        let trained = if recipe.lora.is_some() { "adapters of " } else { "" };
        case::Workload::new(format!("training step of {trained}{}", self.name), dimensions)
    }

    /// The sizes of a case, as `peers/distributed_ranks.py` takes them.
    pub(super) fn sizes(self, dtype: &str) -> Value {
        json!({ "model": self.name, "batch": self.batch, "dtype": dtype })
    }

    /// The graph of a step.
    pub(super) fn step(self, way: &Way) -> Result<Graph, Failure> {
        let recipe = Recipe { batch: self.batch, ..way.recipe.clone() };
        training_step(&learning(self.name, self.batch, &recipe)?, &recipe).map_err(of_training)
    }

    /// The work of a step, which is that of the plainest graph: whatever a plan computes besides is
    /// none. Bytes are those of states, which are read and written.
    pub(super) fn work(self, step: &Graph) -> Work {
        let states = step.states().iter().map(|state| step.ty(state.value).bytes() as u64);
        let per_call = (self.batch * language::tokens(self.name)) as u64;
        let items = Some(Items { per_call, name: "tokens".to_owned() });
        Work { flops: step.cost().flops, bytes: 2 * states.sum::<u64>(), items }
    }

    /// Loss and norm of the gradients of one sample, by their definition. All samples of the batch
    /// are that one, so that its mean is no other.
    pub(super) fn judge(self, recipe: &Recipe) -> Result<Workload, Failure> {
        let sizes = [("T", language::tokens(self.name))];
        let workload = Workload::new("loss and norm", sizes, defined(self.name, recipe)?);
        Ok(Workload { vocabulary: IDS, ..workload })
    }

    /// The inputs of a step: the sample that judges it, as often as the batch has room, and the
    /// learning rate.
    pub(super) fn inputs(self, step: &Graph, sample: &[Tensor]) -> Vec<Tensor> {
        let repeated = sample.iter().map(|tensor| tensor.rows(&vec![0; self.batch]));
        let lr = Tensor::scalar(DType::F32, LEARNING_RATE);
        repeated.chain([lr]).take(step.inputs().len()).collect()
    }
}

/// The forward with its loss, and adapters if these alone learn.
fn learning(model: &str, batch: usize, recipe: &Recipe) -> Result<Graph, Failure> {
    learner(&language::forward(model, batch)?, recipe, batch).map_err(of_graph)
}

/// The loss of one sample, and the norm of the gradients of what the recipe trains.
fn defined(model: &str, recipe: &Recipe) -> Result<Graph, Failure> {
    let forward = learning(model, 1, recipe)?;
    let b = Builder::new(forward.name());
    let values = b.append(&forward).map_err(of_graph)?;
    let port = forward.outputs().iter().find(|port| port.name == "loss");
    let value = port.expect("language models are given a loss").value;
    let loss = values[value.0 as usize];
    let trained: Vec<_> = parameters(&forward, recipe).map(|(_, value)| value).collect();
    let found = gradients(&b, &forward, &values, &[(value, loss.constant(1.0))], &trained);
    let squares = found.into_iter().flatten().map(|g| {
        let axes: Vec<usize> = (0..g.rank()).collect();
        (g * g).sum(&axes)
    });
    let sum = squares.reduce(|sum, more| sum + more).expect("a recipe trains something");
    b.output("loss", loss);
    b.output("grad_norm", sum.sqrt());
    b.finish().map_err(of_graph)
}
