//! `batch_norm` of x `[N, C, ...]` per channel: `(x - μ) / √(σ² + ε) scale + bias`.
//!
//! For inference, μ and σ² are operands: `(x, scale, bias, mean, variance) -> y`. For training,
//! they are those of the batch and results too: `(x, scale, bias) -> (y, mean, variance)`. The
//! model updates its running averages from them. The variance is the biased one. An empty batch has
//! mean and variance 0. Source: Ioffe and Szegedy, "Batch normalization", arXiv:1502.03167.

use crate::{
    Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Reducer, Sample, Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The source of mean and variance.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistics {
    /// They are operands: inference.
    Given,
    /// They are computed over all axes but the channels': training.
    Batch,
}

/// Batch normalisation; channels are axis 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchNorm {
    /// ε, added to the variance.
    pub eps: f64,
    /// The source of mean and variance.
    pub statistics: Statistics,
}

impl<'b> Expr<'b> {
    /// Inference: self `[N, C, ...]`; scale, bias, mean and variance `[C]`.
    pub fn batch_norm(self, [scale, bias, mean, variance]: [Expr<'b>; 4], eps: f64) -> Expr<'b> {
        let op = BatchNorm { eps, statistics: Statistics::Given };
        self.builder().op1(op, &[self, scale, bias, mean, variance])
    }

    /// Training: self `[N, C, ...]`; scale and bias `[C]`. Returns `[y, mean, variance]`.
    pub fn batch_norm_training(self, scale: Expr<'b>, bias: Expr<'b>, eps: f64) -> [Expr<'b>; 3] {
        let op = BatchNorm { eps, statistics: Statistics::Batch };
        let results = self.builder().op(op, &[self, scale, bias]);
        [results[0], results[1], results[2]]
    }
}

/// Every axis but the channels'.
fn batch_axes(rank: usize) -> Vec<usize> {
    (0..rank).filter(|&axis| axis != 1).collect()
}

/// 1 / the number of elements per channel. An empty batch counts as one element.
fn reciprocal_count(x: Expr<'_>) -> f64 {
    1.0 / batch_axes(x.rank()).iter().map(|&axis| x.size(axis)).product::<usize>().max(1) as f64
}

/// Mean over the batch, with extent 1 along its axes.
fn batch_mean<'b>(x: Expr<'b>) -> Expr<'b> {
    x.reduce_keep(Reducer::Sum, &batch_axes(x.rank())) * reciprocal_count(x)
}

/// One value per channel, under every element of `x`.
fn per_channel<'b>(channel: Expr<'b>, x: Expr<'b>) -> Expr<'b> {
    channel.widen().broadcast_in(&x.shape(), &[1])
}

impl Op for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let parameters: &[&str] = match self.statistics {
            Statistics::Given => &["a scale", "a bias", "a mean", "a variance"],
            Statistics::Batch => &["a scale", "a bias"],
        };
        if types.operands.len() != 1 + parameters.len() {
            let expected = format!("x, {}", parameters.join(", "));
            return Err(Mismatch::new(expected, format!("{} operands", types.operands.len())));
        }
        let x = &types.operands[0];
        types.same_float(types.operands)?;
        if x.rank() < 2 {
            return Err(Mismatch::new("x of [N, C, ...]", x.to_string()));
        }
        let channels = Shape(vec![x.shape[1].clone()]);
        for (index, name) in parameters.iter().enumerate() {
            types.shaped(1 + index, name, channels.clone())?;
        }
        Ok(match self.statistics {
            Statistics::Given => vec![x.clone()],
            Statistics::Batch => {
                // In the accumulation type, as running averages need it.
                let statistic = TensorType::new(x.dtype.accumulation(), channels);
                vec![x.clone(), statistic.clone(), statistic]
            }
        })
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let [x, scale, bias] = [&args[0], &args[1], &args[2]];
        let channels = scale.len();
        let inner: usize = x.shape[2..].iter().product();
        let channel_of = |i: usize| i / inner % channels;
        let mean_of = |term: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0.0; channels];
            (0..x.len()).for_each(|i| sums[channel_of(i)] += term(i));
            let count = (x.shape[0] * inner).max(1) as f64;
            Array::float(
                x.dtype.accumulation(),
                &[channels],
                sums.iter().map(|sum| sum / count).collect(),
            )
        };
        let statistics = match self.statistics {
            Statistics::Given => vec![args[3].clone(), args[4].clone()],
            Statistics::Batch => {
                let mean = mean_of(&|i| x.get(i));
                let variance = mean_of(&|i| (x.get(i) - mean.get(channel_of(i))).powi(2));
                vec![mean, variance]
            }
        };
        let (mean, variance) = (&statistics[0], &statistics[1]);
        let normal =
            |i: usize, c: usize| (x.get(i) - mean.get(c)) / (variance.get(c) + self.eps).sqrt();
        let y = (0..x.len())
            .map(|i| (i, channel_of(i)))
            .map(|(i, c)| normal(i, c) * scale.get(c) + bias.get(c));
        let y = Array::float(x.dtype, &x.shape, y.collect());
        match self.statistics {
            Statistics::Given => vec![y],
            Statistics::Batch => [vec![y], statistics].concat(),
        }
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (dtype, x) = (args[0].dtype(), args[0].widen());
        let (scale, bias) = (args[1].widen(), args[2].widen());
        match self.statistics {
            Statistics::Given => {
                // Folded per channel first, so that one multiply-add per element is left.
                let slope = scale * (args[4].widen() + self.eps).rsqrt();
                let offset = bias - args[3].widen() * slope;
                vec![(x * per_channel(slope, x) + per_channel(offset, x)).convert(dtype)]
            }
            Statistics::Batch => {
                let mean = batch_mean(x);
                let centred = x - mean;
                let variance = batch_mean(centred * centred);
                let normal = centred * (variance + self.eps).rsqrt();
                let y = normal * per_channel(scale, x) + per_channel(bias, x);
                let channels = scale.shape();
                vec![y.convert(dtype), mean.reshape(channels.clone()), variance.reshape(channels)]
            }
        }
    }

    /// Training: as for `layer_norm`, plus the cotangents of the statistics themselves. Inference
    /// is affine in x, and its expansion differentiates well.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let [Some(dy), dmean, dvariance] = *g.cotangents else { return None };
        let (dtype, dy, x) = (dy.dtype(), dy.widen(), g.inputs[0].widen());
        let centred = x - per_channel(g.outputs[1], x);
        let rstd = per_channel((g.outputs[2].widen() + self.eps).rsqrt(), x);
        let normal = centred * rstd;
        let inner = dy * per_channel(g.inputs[1], x);
        let mut dx = (inner - batch_mean(inner) - normal * batch_mean(inner * normal)) * rstd;
        let share = reciprocal_count(x);
        if let Some(dmean) = dmean {
            dx = dx + per_channel(dmean, x) * share;
        }
        if let Some(dvariance) = dvariance {
            dx = dx + centred * per_channel(dvariance, x) * (2.0 * share);
        }
        let batch = batch_axes(x.rank());
        let grads = [dx, (dy * normal).sum(&batch), dy.sum(&batch)];
        Some(grads.map(|grad| Some(grad.convert(dtype))).to_vec())
    }

    fn samples() -> Vec<Sample> {
        let given = |shape: Shape, c: crate::Dim| {
            let channels = Shape(vec![c]);
            let sample =
                Sample::new(BatchNorm { eps: 1e-5, statistics: Statistics::Given }).normal(shape);
            sample
                .normal(channels.clone())
                .normal(channels.clone())
                .normal(channels.clone())
                .uniform(channels, 0.1, 2.0)
        };
        let batch = || Sample::new(BatchNorm { eps: 1e-5, statistics: Statistics::Batch });
        vec![
            given(["N", "C", "H", "W"].into(), "C".into()),
            given(["N", "C"].into(), "C".into()),
            given([2usize, 3, 5].into(), 3.into()),
            batch().normal(["N", "C", "H", "W"]).normal(["C"]).normal(["C"]),
            batch().normal(["N", "C"]).normal(["C"]).normal(["C"]),
            batch().uniform([4usize, 2, 3], 30.0, 31.0).normal([2usize]).normal([2usize]),
        ]
    }
}
