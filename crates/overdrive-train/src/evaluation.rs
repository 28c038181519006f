//! `Evaluation`: the results of a model on each sample of a split, so that two models can be
//! compared sample by sample.

use crate::data::{Batch, Target};
use overdrive_ir::Tensor;

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
