//! How good a model is on held-out samples: the loss and the hits of every one, so that two models can be compared
//! sample by sample.
//!
//! Losses are computed on the host in f64 from the model's logits, whatever ran the model. Any graph with input `x` and
//! output `y` of logits will do, quantized ones too.

use crate::TrainError;
use crate::data::{Batch, Split};
use crate::trainer::Compiled;
use overdrive_formats::{Differences, ParametersError, Tensors};
use overdrive_ir::{Backend, Graph, State, Tensor};
use std::path::PathBuf;

/// What a model made of each sample of a split, in the split's order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evaluation {
    /// Cross entropy in nats, summed over the sample's positions (1 of a class, T of a window of text).
    pub losses: Vec<f64>,
    /// Positions whose largest logit is the label's.
    pub hits: Vec<u32>,
    /// Positions of each sample.
    pub positions: usize,
    /// Bytes of text that each sample's labels stand for; empty where labels are not text.
    pub text_bytes: Vec<u64>,
}

impl Evaluation {
    fn total_positions(&self) -> f64 {
        (self.losses.len() * self.positions) as f64
    }

    /// Mean cross entropy of a position, in nats.
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

/// A compiled model that judges splits.
pub struct Evaluator<'a> {
    backend: &'a dyn Backend,
    model: Compiled,
    batch: usize,
}

impl<'a> Evaluator<'a> {
    /// Compiles a bound graph with input `x` `[B, ...]` and output `y` `[B, ..., classes]`.
    ///
    /// # Errors
    /// When the graph is of another kind, or the back end cannot run it.
    pub fn new(backend: &'a dyn Backend, graph: &Graph) -> Result<Self, TrainError> {
        let y = graph.outputs().iter().find(|port| port.name == "y");
        let x = graph.inputs().iter().find(|port| port.name == "x");
        let (Some(x), Some(_)) = (x, y) else {
            let remedy = "name the input `x` and the logits `y`";
            return Err(TrainError::invalid(
                graph.name(),
                "an input `x` and an output `y`",
                "others",
                remedy,
            ));
        };
        let batch = graph.ty(x.value).sizes()[0];
        Ok(Self { backend, model: Compiled::new(backend, graph.clone())?, batch })
    }

    /// Judges every sample; `state` holds the parameters. The last batch is filled up with its first sample, whose
    /// extra results are dropped.
    ///
    /// # Errors
    /// When samples cannot be read or do not fit the model, or the back end fails.
    pub fn evaluate(&mut self, state: &mut State, split: &dyn Split) -> Result<Evaluation, TrainError> {
        let mut evaluation = Evaluation::default();
        let numbers: Vec<u64> = (0..split.len()).collect();
        for part in numbers.chunks(self.batch) {
            let mut filled = part.to_vec();
            filled.resize(self.batch, part[0]);
            let batch = split.batch(&filled)?;
            let outputs = self.model.run(self.backend, state, &[("x", &batch.x)])?;
            let ports = self.model.graph().outputs().iter();
            let y = ports.zip(&outputs).find(|(port, _)| port.name == "y").expect("`new` has seen it").1;
            judge(y, &batch, part.len(), &mut evaluation)?;
            evaluation.text_bytes.extend(batch.text_bytes.iter().take(part.len()));
        }
        Ok(evaluation)
    }
}

/// Appends the first `count` samples of a batch with logits `y`.
fn judge(y: &Tensor, batch: &Batch, count: usize, evaluation: &mut Evaluation) -> Result<(), TrainError> {
    let classes = *y.ty().sizes().last().expect("logits have a last dimension");
    let labels = batch.labels.to_ints();
    if labels.len() * classes != y.ty().elements() {
        let expected = format!("logits for labels {}", batch.labels.ty());
        return Err(TrainError::invalid(
            "output `y`",
            expected,
            y.ty(),
            "evaluate on samples of the model's kind",
        ));
    }
    let positions = labels.len() / batch.labels.ty().sizes()[0];
    let logits = y.to_f32();
    let rows: Vec<(f64, bool)> =
        logits.chunks(classes).zip(&labels).map(|(row, &l)| row_of(row, l as usize)).collect();
    for sample in rows.chunks(positions).take(count) {
        evaluation.losses.push(sample.iter().map(|(loss, _)| loss).sum());
        evaluation.hits.push(sample.iter().filter(|(_, hit)| *hit).count() as u32);
    }
    evaluation.positions = positions;
    Ok(())
}

/// Cross entropy of a row of logits, and whether the label's is the largest (of equal ones, the first).
fn row_of(row: &[f32], label: usize) -> (f64, bool) {
    let mut best = 0;
    for (class, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = class;
        }
    }
    let max = f64::from(row[best]);
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    (max + sum.ln() - f64::from(row[label]), best == label)
}

/// Judges `graph` (bound, input `x`, output `y`) with these parameters on every sample of a split.
///
/// # Errors
/// When the parameters are not the graph's, samples do not fit, or the back end cannot run the graph.
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
    Evaluator::new(backend, graph)?.evaluate(&mut state, split)
}
