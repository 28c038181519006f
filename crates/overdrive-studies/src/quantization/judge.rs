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
use std::cell::OnceCell;
use std::sync::Arc;

/// The samples that graphs are judged on.
pub enum HeldOut {
    /// With labels.
    Labelled(Arc<dyn Split>),
    /// Inputs alone, in batches of the template's own size.
    Inputs(Vec<Vec<Tensor>>),
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
    /// The float model's outputs for inputs alone, from the first look on.
    float: OnceCell<Vec<Vec<Tensor>>>,
}

impl<'a> Judge<'a> {
    /// By labels; a cosine only takes the inputs of as many whole batches as there are.
    ///
    /// # Errors
    /// When there is no whole batch, or samples cannot be read.
    pub fn labelled(
        (backend, template): (&'a dyn Backend, &'a Template),
        metric: Metric,
        split: Arc<dyn Split>,
    ) -> Result<Self, Failure> {
        if metric == Metric::Cosine {
            let batch = batch_of(template);
            let batches = calibration(&split, batch, (split.len() as usize / batch).max(1))?;
            return Ok(Self::by_outputs((backend, template), batches));
        }
        let held_out = HeldOut::Labelled(split);
        Ok(Self { backend, template, metric, held_out, float: OnceCell::new() })
    }

    /// By the float model's outputs on batches of the template's own size.
    pub fn by_outputs(
        (backend, template): (&'a dyn Backend, &'a Template),
        batches: Vec<Vec<Tensor>>,
    ) -> Self {
        let (metric, held_out) = (Metric::Cosine, HeldOut::Inputs(batches));
        Self { backend, template, metric, held_out, float: OnceCell::new() }
    }

    /// Its samples.
    pub fn held_out(&self) -> &HeldOut {
        &self.held_out
    }

    /// The number of its samples.
    pub fn samples(&self) -> u64 {
        match &self.held_out {
            HeldOut::Labelled(split) => split.len(),
            HeldOut::Inputs(batches) => (batches.len() * in_each(batches)) as u64,
        }
    }

    /// Whether the score of each sample is one answer, right or wrong.
    ///
    /// # Errors
    /// When samples cannot be read.
    pub fn is_of_answers(&self) -> Result<bool, Failure> {
        match &self.held_out {
            HeldOut::Labelled(split) if self.metric == Metric::Top1 => {
                Ok(split.batch(&[0]).map_err(unable)?.labels.ty().rank() == 1)
            }
            HeldOut::Labelled(_) | HeldOut::Inputs(_) => Ok(false),
        }
    }

    /// The same on `count` of its samples, spread evenly: of inputs alone on as many whole batches
    /// as have them.
    #[must_use]
    pub fn on(&self, count: u64) -> Self {
        let held_out = match &self.held_out {
            HeldOut::Labelled(split) => {
                HeldOut::Labelled(Arc::new(Subset::evenly(Arc::clone(split), count)))
            }
            HeldOut::Inputs(batches) => {
                let kept = (count as usize).div_ceil(in_each(batches)).min(batches.len());
                let place = |i: usize| batches[i * batches.len() / kept].clone();
                HeldOut::Inputs((0..kept).map(place).collect())
            }
        };
        Self { held_out, float: OnceCell::new(), ..*self }
    }

    /// The same on `count` of its samples, by the smoothest metric: the loss if there are labels.
    #[must_use]
    pub fn screening(&self, count: u64) -> Self {
        let metric = match &self.held_out {
            HeldOut::Labelled(split) => match split.target() {
                Target::Classes => Metric::Perplexity,
                Target::Quantity => Metric::SquaredError,
            },
            HeldOut::Inputs(_) => Metric::Cosine,
        };
        Self { metric, ..self.on(count) }
    }

    /// Inputs of its samples, in batches of the float model `graph`. A last batch that is smaller
    /// than the others is left out.
    ///
    /// # Errors
    /// When samples cannot be read, or do not fit the model.
    pub(super) fn whole_batches(&self, graph: &Graph) -> Result<Vec<Vec<Tensor>>, Failure> {
        let split = match &self.held_out {
            HeldOut::Labelled(split) => split,
            HeldOut::Inputs(batches) => return Ok(batches.clone()),
        };
        let judged = Judged::new(graph, split.target()).map_err(unable)?;
        let batches: Result<Vec<_>, _> = judged.batches(split.as_ref()).collect();
        let mut batches = batches.map_err(unable)?;
        let whole = batches.first().map(|(_, count)| *count);
        batches.retain(|(_, count)| Some(*count) == whole);
        // Labels come after the inputs of the model.
        let inputs = |(batch, _)| judged.inputs(&batch)[..graph.inputs().len()].to_vec();
        Ok(batches.into_iter().map(inputs).collect())
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
            HeldOut::Inputs(batches) => {
                let found = outputs_told(self.backend, &graph, batches, done)?;
                Ok(Scores { fold: 0, samples: cosines(self.float(batches)?, &found) })
            }
        }
    }
}

impl Judge<'_> {
    fn float(&self, batches: &[Vec<Tensor>]) -> Result<&Vec<Vec<Tensor>>, Failure> {
        if let Some(known) = self.float.get() {
            return Ok(known);
        }
        let graph = bound(self.template, &self.template.graph)?;
        let found = outputs(self.backend, &graph, batches)?;
        Ok(self.float.get_or_init(|| found))
    }
}

/// Samples in each of these batches: the first axis of an input, as a file of ONNX names no batch.
fn in_each(batches: &[Vec<Tensor>]) -> usize {
    let sizes = batches.first().and_then(|batch| batch.first()).map(|first| first.ty().sizes());
    sizes.and_then(|sizes| sizes.first().copied()).unwrap_or(1).max(1)
}

fn unable(error: TrainError) -> Failure {
    Failure::failed(error.to_string())
}

/// A graph of the template's interface in its dimensions.
pub(super) fn bound(template: &Template, graph: &Graph) -> Result<Graph, Failure> {
    bind(graph, &template.dimensions).map_err(|e| Failure::failed(e.to_string()))
}
