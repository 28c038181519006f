//! Runs of training on ranks that are threads, as tests compare them.

use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::plan::Space;
use overdrive_ir::{Communicator, Graph, Mesh, Plan};
use overdrive_models::find;
use overdrive_ranks::run;
use overdrive_train::data::{Dataset, Parts, digits};
use overdrive_train::{
    Checkpoint, Evaluation, Fit, Fitted, Observer, Recipe, Sharing, StepReport, TrainError, fit,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Adam divides by the root of squares. So the last bits of a gradient move a weight by far less
/// than a step of `lr`, here 1e-3. They move it by more than its own last bits.
pub(crate) const ROUNDING: f64 = 2e-5;

/// The data and the model of a run.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) model: Graph,
    pub(crate) parts: Parts,
    pub(crate) recipe: Recipe,
}

pub(crate) fn of_digits() -> Task {
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    let parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    let recipe = Recipe { steps: 6, batch: 24, evaluate_every: 3, ..Recipe::default() };
    Task { model, parts, recipe }
}

/// Losses of steps and of looks at the validation samples, and facts of the plan; ends the run
/// after some steps.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    pub(crate) validation: Vec<Evaluation>,
    pub(crate) last: Option<u64>,
    /// Bytes of states that a rank holds.
    pub(crate) states: Option<u64>,
    /// Most bytes that its plan takes.
    pub(crate) peak: u64,
    /// Values that it computes again to fit a limit of memory.
    pub(crate) recomputed: usize,
    /// FLOPs of an update of all ranks.
    pub(crate) flops: u64,
}

impl Observer for Watch {
    fn planned(&mut self, plan: &Plan, memory: &MemoryReport, flops: u64) {
        (self.states, self.flops) = (Some(memory.state_bytes), flops);
        self.peak = plan.peak_bytes(Space::MAIN);
        self.recomputed = plan.notes.iter().filter(|note| note.is_recomputed_for_memory()).count();
    }

    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        self.losses.push(report.loss);
        self.norms.push(report.grad_norm);
        match self.last {
            Some(last) if report.step >= last => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn evaluated(&mut self, _: u64, evaluation: &Evaluation) {
        self.validation.push(evaluation.clone());
    }
}

/// Bytes of states that a rank holds.
pub(crate) fn held(watch: &Watch) -> u64 {
    watch.states.expect("a run has a plan")
}

pub(crate) type Outcome = Result<(Fitted, Watch), TrainError>;

/// Settings of a run in addition to its task.
#[derive(Copy, Clone, Default)]
pub(crate) struct Beside<'a> {
    pub(crate) resume: Option<&'a Checkpoint>,
    pub(crate) checkpoint: Option<&'a Path>,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) sharing: Sharing,
}

/// The run as one rank sees it.
pub(crate) fn of_rank(
    task: &Task,
    ranks: Option<Arc<dyn Communicator>>,
    beside: Beside<'_>,
) -> Outcome {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let backend = match &ranks {
        Some(communicator) => backend.on(Arc::clone(communicator)),
        None => backend,
    };
    let Beside { resume, checkpoint, memory_limit, last, sharing } = beside;
    let mut watch = Watch { last, ..Watch::default() };
    let run = Fit::anew((&backend, &task.model), &task.recipe, &task.parts);
    let run = Fit { resume, checkpoint, memory_limit, ranks: ranks.as_deref(), sharing, ..run };
    let fitted = fit(&run, &mut watch)?;
    Ok((fitted, watch))
}

pub(crate) fn alone(task: &Task) -> (Fitted, Watch) {
    of_rank(task, None, Beside::default()).unwrap()
}

pub(crate) fn close(name: &str, expected: &[f64], found: &[f64], within: f64) {
    assert_eq!(expected.len(), found.len(), "{name}");
    for (a, b) in expected.iter().zip(found) {
        assert!((a - b).abs() <= within * (1.0 + a.abs()), "{name}: expected {a}, found {b}");
    }
}

pub(crate) fn same(expected: &Tensors, found: &Tensors, within: f64) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, tensor) in expected {
        close(name, &tensor.to_f64(), &found[name].to_f64(), within);
    }
}

/// The runs of all ranks of a mesh, as each of them sees it.
pub(crate) fn on(task: &Task, mesh: &str, beside: Beside<'_>) -> Vec<(Fitted, Watch)> {
    let mesh: Mesh = mesh.parse().unwrap();
    let all = run(&mesh, PATIENCE, |rank| of_rank(task, Some(rank), beside));
    all.into_iter().map(|result| result.unwrap_or_else(|e| panic!("{mesh}: {e}"))).collect()
}
