//! Evaluates a model on held-out samples. Gives the loss and the hits of every sample, so that two
//! models can be compared sample by sample.
//!
//! Losses are computed in f64 from the model's logits, where the model runs. A number for each
//! position crosses to the host, instead of one for each class of it. Any graph with input `x` and
//! output `y` of logits will do, quantized ones too.

use crate::compiled::Compiled;
use crate::data::{Batch, Split, Target};
use crate::held::{Held, Sharing, by_name};
use crate::loss::with_judgement;
use crate::ranks::Ranks;
use crate::{Evaluation, TrainError};
use overdrive_formats::{Differences, ParametersError, Tensors};
use overdrive_ir::{Backend, DType, Graph, State, Tensor, TensorType, Tuning};
use overdrive_passes::precision;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// A bound graph with input `x` `[B, ...]` and output `y` `[B, ..., classes]`, made to judge its
/// outputs by labels.
pub struct Judged {
    graph: Graph,
    batch: usize,
    /// The labels that fit the logits.
    labels: TensorType,
}

impl Judged {
    /// The graph that judges.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn new(graph: &Graph, target: Target) -> Result<Self, TrainError> {
        let Some(x) = graph.inputs().iter().find(|port| port.name == "x") else {
            let names: Vec<&str> = graph.inputs().iter().map(|port| port.name.as_str()).collect();
            let remedy = "name the input `x` and the logits `y`";
            return Err(TrainError::invalid(
                graph.name(),
                "an input `x` and an output `y`",
                format!("inputs {names:?}"),
                remedy,
            ));
        };
        let batch = graph.ty(x.value).sizes()[0];
        let graph = with_judgement(graph, target)?;
        let labels = graph.inputs().iter().find(|port| port.name == "labels");
        let labels = graph.ty(labels.expect("a judged graph takes labels").value).clone();
        Ok(Self { graph, batch, labels })
    }

    /// The graph: from samples and their labels to a loss and, of classes, a hit for each position.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// A split in batches, each with how many samples of it count: the last is filled up with its
    /// first sample.
    ///
    /// # Errors
    /// When samples cannot be read, or do not fit the model.
    pub fn batches<'s>(
        &'s self,
        split: &'s dyn Split,
    ) -> impl Iterator<Item = Result<(Batch, usize), TrainError>> + 's {
        self.batches_up_to(split, split.len())
    }

    /// The same as if the split had so many samples, at least as many as it has.
    fn batches_up_to<'s>(
        &'s self,
        split: &'s dyn Split,
        len: u64,
    ) -> impl Iterator<Item = Result<(Batch, usize), TrainError>> + 's {
        (0..len).step_by(self.batch).map(move |start| {
            let mut filled: Vec<u64> =
                (start..split.len().min(start + self.batch as u64)).collect();
            let count = filled.len();
            filled.resize(self.batch, filled.first().copied().unwrap_or(0));
            let batch = split.batch(&filled)?;
            let labels = self.fitting(&batch)?;
            Ok((Batch { labels, ..batch }, count))
        })
    }

    /// The inputs of a batch in the order of the graph.
    pub fn inputs(&self, batch: &Batch) -> Vec<Tensor> {
        let input = |name: &str| {
            let found = batch.inputs().find(|(input, _)| *input == name);
            found.map_or(&batch.labels, |(_, tensor)| tensor).clone()
        };
        self.graph.inputs().iter().map(|port| input(&port.name)).collect()
    }

    /// The labels of a batch in the shape that the logits ask for.
    fn fitting(&self, batch: &Batch) -> Result<Tensor, TrainError> {
        let found = batch.labels.ty();
        if (found.dtype, found.elements()) != (self.labels.dtype, self.labels.elements()) {
            return Err(TrainError::invalid(
                "output `y`",
                format!("logits for labels {found}"),
                format!("logits for labels {}", self.labels),
                "evaluate on samples of the model's kind",
            ));
        }
        let labels = Tensor::from_bytes(self.labels.clone(), batch.labels.bytes().to_vec());
        Ok(labels.expect("as many labels of the same type"))
    }
}

/// A compiled model that judges splits.
pub struct Evaluator<'a> {
    backend: &'a dyn Backend,
    ranks: Ranks<'a>,
    judged: Judged,
    model: Compiled,
    held: Held,
}

impl<'a> Evaluator<'a> {
    /// Compiles a bound graph with input `x` `[B, ...]` and output `y` `[B, ..., classes]`.
    ///
    /// # Errors
    /// When the graph is of another kind, or the back end cannot run it.
    pub fn new(
        backend: &'a dyn Backend,
        graph: &Graph,
        target: Target,
    ) -> Result<Self, TrainError> {
        let whole = (target, DType::F32);
        Self::of_rank((backend, Ranks(None, Sharing::default())), (graph, None), whole)
    }

    /// The same as one rank of several, which judges its part of the samples. The graph is of a
    /// batch of all ranks; `like` says how the step holds its states. Contractions are in the
    /// format given.
    pub(crate) fn of_rank(
        (backend, ranks): (&'a dyn Backend, Ranks<'a>),
        (graph, like): (&Graph, Option<&Held>),
        (target, contractions): (Target, DType),
    ) -> Result<Self, TrainError> {
        let mut judged = Judged::new(graph, target)?;
        let whole = match like.and_then(Held::stages) {
            Some(stages) => stages.forward(&judged.graph)?,
            None => judged.graph.clone(),
        };
        let whole = precision(&whole, &overdrive_passes::Recipe { contractions })?;
        let (graph, held) = ranks.graph(whole, None, like)?;
        let model = Compiled::new(backend, graph, &Tuning::default())?;
        let mut labels = judged.labels.sizes();
        labels[0] /= ranks.count();
        judged.labels = judged.labels.with_shape(labels);
        judged.batch /= ranks.count();
        Ok(Self { backend, ranks, judged, model, held })
    }

    /// Labels of each sample.
    pub(crate) fn labels_of_sample(&self) -> usize {
        self.judged.labels.elements() / self.judged.batch.max(1)
    }

    /// Judges every sample; `state` holds the parameters.
    ///
    /// # Errors
    /// When samples cannot be read or do not fit the model, or the back end fails.
    pub fn evaluate(
        &mut self,
        state: &mut State,
        split: &dyn Split,
    ) -> Result<Evaluation, TrainError> {
        self.evaluate_up_to(state, split, split.len())
    }

    /// The same in as many batches as a split of so many samples has. Ranks that gather parameters
    /// meet in each batch, so all of them need as many as the one with most samples.
    pub(crate) fn evaluate_up_to(
        &mut self,
        state: &mut State,
        split: &dyn Split,
        len: u64,
    ) -> Result<Evaluation, TrainError> {
        let whole = self.evaluate_while(state, (split, len), &mut |_| ControlFlow::Continue(()))?;
        Ok(whole.expect("nobody ends it"))
    }

    /// The same. `goes_on` is asked before each batch, with the number of samples that are judged;
    /// `None` if it breaks.
    fn evaluate_while(
        &mut self,
        state: &mut State,
        (split, len): (&dyn Split, u64),
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<Evaluation>, TrainError> {
        let mut evaluation = Evaluation::default();
        for batch in self.judged.batches_up_to(split, len) {
            if goes_on(evaluation.losses.len() as u64).is_break() {
                return Ok(None);
            }
            let (batch, count) = batch?;
            let place = (self.model.graph(), self.ranks.rank());
            let given = self.held.given((&batch, 0, 1), place);
            let outputs = self.model.run(self.backend, state, &by_name(&given))?;
            evaluation.add((&batch, count), &outputs);
        }
        Ok(Some(evaluation))
    }
}

/// Judges `graph` (bound, input `x`, output `y`) with these parameters on every sample of a split.
///
/// # Errors
/// When the parameters are not the graph's, samples do not fit, or the back end cannot run the
/// graph.
pub fn evaluate(
    backend: &dyn Backend,
    graph: &Graph,
    parameters: &Tensors,
    split: &dyn Split,
) -> Result<Evaluation, TrainError> {
    let whole =
        evaluate_while((backend, graph), parameters, split, &mut |_| ControlFlow::Continue(()))?;
    Ok(whole.expect("nobody ends it"))
}

/// As [`evaluate`]. `goes_on` is asked before each batch, with the number of samples that are
/// judged; `None` if it breaks.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_while(
    (backend, graph): (&dyn Backend, &Graph),
    parameters: &Tensors,
    split: &dyn Split,
    goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Evaluation>, TrainError> {
    let differences = Differences::between(graph, parameters);
    if !differences.is_empty() {
        let path = PathBuf::from("the parameters given");
        return Err(ParametersError::Different { path, differences }.into());
    }
    let mut state = State::default();
    for (name, tensor) in parameters {
        state.buffers.insert(name.clone(), backend.upload(tensor)?);
    }
    let mut evaluator = Evaluator::new(backend, graph, split.target())?;
    evaluator.evaluate_while(&mut state, (split, split.len()), goes_on)
}
