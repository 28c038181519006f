//! The measure that a model is judged by, and its loss against the float one: a score for each
//! held-out sample, paired.

use super::estimate::{Estimate, mean};
use overdrive_train::Evaluation;
use serde::{Deserialize, Serialize};

/// A measure of a model on held-out samples.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Share of labels whose logit is the largest, in percent.
    Top1,
    /// e to the mean cross entropy of a token.
    Perplexity,
    /// Cosine of the angle between a sample's outputs and those of the float model.
    Cosine,
    /// Mean of the squared difference between the one output and a quantity.
    SquaredError,
}

/// A model's score on each held-out sample of its fold: percent of correct labels, nats per token,
/// cosine, or squared error.
#[derive(Clone, PartialEq, Debug)]
pub struct Scores {
    /// The fold whose samples these are.
    pub fold: usize,
    /// One a sample.
    pub samples: Vec<f64>,
}

impl Metric {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Top1 => "top1",
            Self::Perplexity => "perplexity",
            Self::Cosine => "cosine",
            Self::SquaredError => "mse",
        }
    }

    /// The quantity of a record that holds it.
    pub const fn quantity(self) -> &'static str {
        match self {
            Self::Top1 => "top1_percent",
            Self::Perplexity => "perplexity",
            Self::Cosine => "cosine",
            Self::SquaredError => "mean_squared_error",
        }
    }

    /// The unit of what is lost.
    pub const fn unit_of_loss(self) -> &'static str {
        match self {
            Self::Top1 => "points",
            Self::Perplexity => "%",
            Self::Cosine => "of cosine",
            Self::SquaredError => "of squared error",
        }
    }

    /// Scores of an evaluation on labelled samples, sample by sample; a cosine is of outputs, not
    /// of labels.
    pub fn scores(self, fold: usize, evaluation: &Evaluation) -> Scores {
        let positions = evaluation.positions.max(1) as f64;
        let samples = match self {
            Self::Top1 => {
                evaluation.hits.iter().map(|&hits| 100.0 * f64::from(hits) / positions).collect()
            }
            Self::Perplexity => evaluation.losses.iter().map(|loss| loss / positions).collect(),
            Self::SquaredError => evaluation.losses.clone(),
            Self::Cosine => panic!("a cosine is not of labels"),
        };
        Scores { fold, samples }
    }

    /// The measure over all samples, with its interval.
    pub fn of(self, models: &[Scores]) -> Estimate {
        let found = mean(&pairs(models, |_, _, score| score), self.bound());
        match self {
            Self::Top1 => found.map(|x| x.clamp(0.0, 100.0)),
            Self::Perplexity => found.map(f64::exp),
            Self::Cosine => found.map(|x| x.clamp(-1.0, 1.0)),
            Self::SquaredError => found.map(|x| x.max(0.0)),
        }
    }

    /// The loss of the second models against the first, sample by sample: points of accuracy,
    /// percent of perplexity, cosine, or squared error. Above 0 is worse.
    pub fn loss(self, float: &[Scores], found: &[Scores]) -> Estimate {
        assert_eq!(
            float.len(),
            found.len(),
            "each model is compared with the one that it came from"
        );
        let against = |model: usize, sample: usize, score: f64| {
            let float = float[model].samples[sample];
            match self {
                Self::Perplexity | Self::SquaredError => score - float,
                Self::Top1 | Self::Cosine => float - score,
            }
        };
        let difference = mean(&pairs(found, against), self.bound());
        if self == Self::Perplexity { difference.map(|x| 100.0 * x.exp_m1()) } else { difference }
    }

    /// The most that a sample whose score takes few values can change by; 0 where scores are
    /// continuous.
    fn bound(self) -> f64 {
        if self == Self::Top1 { 100.0 } else { 0.0 }
    }
}

/// A value for each sample of each model.
fn pairs(models: &[Scores], value: impl Fn(usize, usize, f64) -> f64) -> Vec<(usize, Vec<f64>)> {
    let of = |(model, scores): (usize, &Scores)| {
        let values =
            scores.samples.iter().enumerate().map(|(sample, score)| value(model, sample, *score));
        (scores.fold, values.collect())
    };
    models.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(hits: &[u32], nats: f64) -> Evaluation {
        let losses = vec![nats; hits.len()];
        Evaluation { losses, hits: hits.to_vec(), positions: 1, ..Evaluation::default() }
    }

    #[test]
    fn losses_are_paired_and_positive_when_worse() {
        let (float, worse) = (evaluation(&[1, 1, 1, 0], 1.0), evaluation(&[1, 0, 1, 0], 1.01));
        let scores = |metric: Metric, e: &Evaluation| vec![metric.scores(0, e)];
        let top1 = Metric::Top1.loss(&scores(Metric::Top1, &float), &scores(Metric::Top1, &worse));
        assert_eq!(top1.value, 25.0);
        assert!(!top1.is_positive(), "one sample of four decides nothing: {top1:?}");
        let metric = Metric::Perplexity;
        let lost = metric.loss(&scores(metric, &float), &scores(metric, &worse));
        assert!(
            (lost.value - 100.0 * 0.01f64.exp_m1()).abs() < 1e-9 && lost.is_positive(),
            "{lost:?}"
        );
        assert_eq!(metric.of(&scores(metric, &float)).value, 1f64.exp());
    }

    #[test]
    fn a_shared_hard_sample_does_not_widen_a_paired_loss() {
        let nats: Vec<f64> = (0..100).map(|i| f64::from(i % 7)).collect();
        let at = |shift: f64| {
            vec![Scores { fold: 0, samples: nats.iter().map(|x| x + shift).collect() }]
        };
        let metric = Metric::Perplexity;
        let (own, lost) = (metric.of(&at(0.0)), metric.loss(&at(0.0), &at(0.01)));
        assert!(own.high - own.low > 1.0 && lost.high - lost.low < 1e-6, "{own:?} {lost:?}");
    }
}
