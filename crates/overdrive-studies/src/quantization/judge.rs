//! Judges graphs of one interface on the same held-out samples: by their labels, or by the float
//! model's outputs.

use super::batches::{batch_of, calibration};
use super::cosines;
use super::metric::{Metric, Scores};
use super::streamed::{Done, outputs, outputs_told};
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, Tensor};
use overdrive_passes::bind;
use overdrive_train::data::{Split, Subset, Target};
use overdrive_train::{Evaluation, Judged, TrainError};
use std::sync::Arc;

/// The samples that graphs are judged on.
enum HeldOut {
    Labelled(Arc<dyn Split>),
    /// Batches, and the float model's outputs for them.
    Outputs(Vec<Vec<Tensor>>, Vec<Vec<Tensor>>),
}

/// A metric with its samples.
pub struct Judge<'a> {
    /// The back end that graphs run on.
    pub backend: &'a dyn Backend,
    /// The float model, whose dimensions graphs are bound to.
    pub template: &'a Template,
    /// The metric of the scores.
    pub metric: Metric,
    held_out: HeldOut,
}

impl<'a> Judge<'a> {
    /// By labels; a cosine only takes the inputs of as many whole batches as there are.
    ///
    /// # Errors
    /// When the back end cannot run the float model.
    pub fn labelled(
        (backend, template): (&'a dyn Backend, &'a Template),
        metric: Metric,
        split: Arc<dyn Split>,
    ) -> Result<Self, Failure> {
        if metric == Metric::Cosine {
            let batch = batch_of(template);
            let batches = calibration(&split, batch, (split.len() as usize / batch).max(1))?;
            return Self::by_outputs((backend, template), batches);
        }
        Ok(Self { backend, template, metric, held_out: HeldOut::Labelled(split) })
    }

    /// By the float model's outputs on batches of the template's own size.
    ///
    /// # Errors
    /// When the back end cannot run the float model.
    pub fn by_outputs(
        (backend, template): (&'a dyn Backend, &'a Template),
        batches: Vec<Vec<Tensor>>,
    ) -> Result<Self, Failure> {
        let float = outputs(backend, &bound(template, &template.graph)?, &batches)?;
        Ok(Self {
            backend,
            template,
            metric: Metric::Cosine,
            held_out: HeldOut::Outputs(batches, float),
        })
    }

    /// The same on `count` of its samples, by the smoothest metric: the loss if there are labels.
    #[must_use]
    pub fn screening(&self, count: u64) -> Self {
        let (metric, held_out) = match &self.held_out {
            HeldOut::Labelled(split) => {
                let split: Arc<dyn Split> = Arc::new(Subset::evenly(Arc::clone(split), count));
                let metric = match split.target() {
                    Target::Classes => Metric::Perplexity,
                    Target::Quantity => Metric::SquaredError,
                };
                (metric, HeldOut::Labelled(split))
            }
            HeldOut::Outputs(batches, float) => {
                let kept = (count as usize).div_ceil(batch_of(self.template)).min(batches.len());
                (Metric::Cosine, HeldOut::Outputs(batches[..kept].to_vec(), float[..kept].to_vec()))
            }
        };
        Self { metric, held_out, ..*self }
    }

    /// The score of a graph, unbound as the template's, on each sample.
    ///
    /// # Errors
    /// When the back end cannot run it.
    pub fn scores(&self, graph: &Graph) -> Result<Scores, Failure> {
        self.scores_told(graph, &mut |_, _| {})
    }

    /// The same; `done` is told how far it is.
    ///
    /// # Errors
    /// As [`Self::scores`].
    pub fn scores_told(&self, graph: &Graph, done: &mut Done<'_>) -> Result<Scores, Failure> {
        let graph = bound(self.template, graph)?;
        match &self.held_out {
            HeldOut::Labelled(split) => {
                let judged = Judged::new(&graph, split.target()).map_err(unable)?;
                let batches: Result<Vec<_>, _> = judged.batches(split.as_ref()).collect();
                let batches = batches.map_err(unable)?;
                let inputs: Vec<_> =
                    batches.iter().map(|(batch, _)| judged.inputs(batch)).collect();
                let found = outputs_told(self.backend, judged.graph(), &inputs, done)?;
                let mut evaluation = Evaluation::default();
                for ((batch, count), found) in batches.iter().zip(&found) {
                    evaluation.add((batch, *count), found);
                }
                Ok(self.metric.scores(0, &evaluation))
            }
            HeldOut::Outputs(batches, float) => {
                let found = outputs_told(self.backend, &graph, batches, done)?;
                Ok(Scores { fold: 0, samples: cosines(float, &found) })
            }
        }
    }
}

fn unable(error: TrainError) -> Failure {
    Failure::failed(error.to_string())
}

/// A graph of the template's interface in its dimensions.
pub(super) fn bound(template: &Template, graph: &Graph) -> Result<Graph, Failure> {
    bind(graph, &template.dimensions).map_err(|e| Failure::failed(e.to_string()))
}
