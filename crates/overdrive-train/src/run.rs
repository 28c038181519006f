//! A run of training: its input, the observer of its progress, and its result.

use crate::data::{Parts, Split};
use crate::{Checkpoint, Evaluation, Progress, Recipe, Sharing, StepReport};
use overdrive_formats::Tensors;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::{Backend, Communicator, Graph, Plan};
use overdrive_passes::Skipped;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A run of training.
#[derive(Copy, Clone)]
pub struct Fit<'a> {
    /// The back end that it runs on.
    pub backend: &'a dyn Backend,
    /// The forward graph: input `x`, output `y`, the batch a named dimension `batch`. States that
    /// begin as given tensors begin so; random ones are drawn from the recipe's seed.
    pub model: &'a Graph,
    /// How.
    pub recipe: &'a Recipe,
    /// The samples that it learns from.
    pub train: &'a dyn Split,
    /// The samples that judge it on the way, or as many of them as a look takes.
    pub validation: &'a Arc<dyn Split>,
    /// The checkpoint at which an earlier run of the same model, recipe and data stopped.
    pub resume: Option<&'a Checkpoint>,
    /// The folder of checkpoints. One is written after a look at the validation samples, unless the
    /// last was a moment ago, and at the end.
    pub checkpoint: Option<&'a Path>,
    /// Most bytes of device memory that the plan of a step may take, including its states. To fit,
    /// values are recomputed, and values and optimizer moments are moved to other memory.
    pub memory_limit: Option<u64>,
    /// Connection to the other ranks, if the run has several. Each rank calls `fit` with the same
    /// model, recipe and data, and takes its part of every batch.
    pub ranks: Option<&'a dyn Communicator>,
    /// The parts of training that ranks share out beside the batch. Each rank writes its parts of
    /// states to checkpoints.
    pub sharing: Sharing,
}

impl<'a> Fit<'a> {
    /// From the start, on the parts of some data, with nothing kept and no limit of memory.
    pub fn anew(
        (backend, model): (&'a dyn Backend, &'a Graph),
        recipe: &'a Recipe,
        parts: &'a Parts,
    ) -> Self {
        Self {
            backend,
            model,
            recipe,
            train: parts.train.as_ref(),
            validation: &parts.validation,
            resume: None,
            checkpoint: None,
            memory_limit: None,
            ranks: None,
            sharing: Sharing::default(),
        }
    }
}

/// Told how a run goes; may end it.
pub trait Observer {
    /// Before the plans of another run are made, since this one takes too much memory. `options`
    /// are those that differ, as a user writes them. Plans of a large model take seconds each;
    /// `Break` ends the search.
    fn seeks(&mut self, options: &str) -> ControlFlow<()> {
        let _ = options;
        ControlFlow::Continue(())
    }

    /// Before the first step: its plan, what the plans of a rank hold, states included, and the
    /// FLOPs of an update of all ranks.
    fn planned(&mut self, plan: &Plan, memory: &MemoryReport, flops: u64) {
        let _ = (plan, memory, flops);
    }

    /// Before the first step of a run on codes of fp8: the linear layers that stay in float.
    fn left_in_float(&mut self, layers: &[Skipped]) {
        let _ = layers;
    }

    /// After each step; `Break` ends the run with a checkpoint.
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        let _ = report;
        ControlFlow::Continue(())
    }

    /// When the training loss has risen far above noise, once in a run, which goes on. The text
    /// says by how much, the layer and the tensors that have grown most, and what to try.
    fn diverges(&mut self, done: u64, diagnosis: &str) {
        let _ = (done, diagnosis);
    }

    /// After each look at the validation samples, `done` steps into the run.
    fn evaluated(&mut self, done: u64, evaluation: &Evaluation) {
        let _ = (done, evaluation);
    }
}

/// Nobody listens.
impl Observer for () {}

/// How a run ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// All steps were done.
    Finished,
    /// The validation loss had stopped falling.
    Early,
    /// The observer ended it.
    Interrupted,
}

/// The result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Fitted {
    /// Parameters that were trained: with early stop the best, else the last. If ranks share out
    /// parameters, rank 0 has whole ones and any other its parts.
    pub parameters: Tensors,
    /// Validation loss of these parameters, by the look that saw them; `None` if none did.
    pub validation_loss: Option<f64>,
    /// How far it came.
    pub progress: Progress,
    /// Why it ended.
    pub ending: Ending,
}
