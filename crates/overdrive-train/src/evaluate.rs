//! Evaluates a model on held-out samples. Gives the loss and the hits of every sample, so that two
//! models can be compared sample by sample.
//!
//! Losses are computed in f64 from the model's logits, where the model runs. A number for each
//! position crosses to the host, instead of one for each class of it. Any graph with input `x` and
//! output `y` of logits will do, quantized ones too.

use crate::TrainError;
use crate::compiled::Compiled;
use crate::data::{Batch, Split, Target};
use crate::loss::with_judgement;
use overdrive_formats::{Differences, ParametersError, Tensors};
use overdrive_ir::{Backend, Graph, State, Tensor, TensorType, Tuning};
use std::path::PathBuf;

/// Results of a model on each sample of a split, in the split's order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evaluation {
    /// Cross entropy in nats, summed over the sample's positions (1 of a class, T of a window of
    /// text); of a quantity the squared error.
    pub losses: Vec<f64>,
    /// Positions whose largest logit is the label's; empty of quantities.
    pub hits: Vec<u32>,
    /// The target of each sample, for quantities; else empty.
    pub quantities: Vec<f64>,
    /// Positions of each sample.
    pub positions: usize,
    /// Bytes of text that each sample's labels stand for; empty where labels are not text.
    pub text_bytes: Vec<u64>,
}

impl Evaluation {
    /// Adds the outputs of a judged graph for a batch. Only its first `count` samples count.
    pub fn add(&mut self, (batch, count): (&Batch, usize), outputs: &[Tensor]) {
        self.positions = batch.labels.ty().elements() / batch.x.ty().sizes()[0];
        let sums = |output: &Tensor| -> Vec<f64> {
            let values = output.to_f64();
            values.chunks(self.positions).take(count).map(|values| values.iter().sum()).collect()
        };
        self.losses.extend(sums(&outputs[0]));
        match outputs.get(1) {
            Some(hits) => self.hits.extend(sums(hits).into_iter().map(|hits| hits as u32)),
            None => self.quantities.extend(batch.labels.to_f64().iter().take(count)),
        }
        self.text_bytes.extend(batch.text_bytes.iter().take(count));
    }

    /// The kind of target of its samples.
    pub fn target(&self) -> Target {
        if self.quantities.is_empty() { Target::Classes } else { Target::Quantity }
    }

    /// Share of the variance of quantities that the model explains (R²): 1 of a perfect one, 0 of
    /// their mean, below of a worse one; `None` of classes, and where all are the same.
    pub fn explained(&self) -> Option<f64> {
        let mean = self.quantities.iter().sum::<f64>() / self.quantities.len() as f64;
        let variation: f64 = self.quantities.iter().map(|x| (x - mean).powi(2)).sum();
        (variation > 0.0).then(|| 1.0 - self.losses.iter().sum::<f64>() / variation)
    }

    fn total_positions(&self) -> f64 {
        (self.losses.len() * self.positions) as f64
    }

    /// Mean cross entropy of a position, in nats; of quantities the mean squared error.
    pub fn loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.total_positions()
    }

    /// Share of positions that were hit, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.hits.iter().map(|&n| f64::from(n)).sum::<f64>() / self.total_positions()
    }

    /// e to the mean cross entropy of a token.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Bits that the text takes under the model, per byte; `None` where labels are not text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes: u64 = self.text_bytes.iter().sum();
        (bytes > 0).then(|| self.losses.iter().sum::<f64>() / std::f64::consts::LN_2 / bytes as f64)
    }
}

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
        let numbers: Vec<u64> = (0..split.len()).collect();
        let starts = (0..numbers.len()).step_by(self.batch);
        starts.map(move |start| {
            let part = &numbers[start..(start + self.batch).min(numbers.len())];
            let mut filled = part.to_vec();
            filled.resize(self.batch, part[0]);
            let batch = split.batch(&filled)?;
            let labels = self.fitting(&batch)?;
            Ok((Batch { labels, ..batch }, part.len()))
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
    judged: Judged,
    model: Compiled,
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
        let judged = Judged::new(graph, target)?;
        Ok(Self {
            backend,
            model: Compiled::new(backend, judged.graph.clone(), &Tuning::default())?,
            judged,
        })
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
        let mut evaluation = Evaluation::default();
        for batch in self.judged.batches(split) {
            let (batch, count) = batch?;
            let inputs: Vec<_> = batch.inputs().chain([("labels", &batch.labels)]).collect();
            evaluation.add((&batch, count), &self.model.run(self.backend, state, &inputs)?);
        }
        Ok(evaluation)
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
    let differences = Differences::between(graph, parameters);
    if !differences.is_empty() {
        let path = PathBuf::from("the parameters given");
        return Err(ParametersError::Different { path, differences }.into());
    }
    let mut state = State::default();
    for (name, tensor) in parameters {
        state.buffers.insert(name.clone(), backend.upload(tensor)?);
    }
    Evaluator::new(backend, graph, split.target())?.evaluate(&mut state, split)
}
