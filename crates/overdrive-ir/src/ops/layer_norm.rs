//! `layer_norm(x, scale, bias)` over the last axis: `(x - μ) / √(σ² + ε) scale + bias`, with μ and
//! σ² the mean and the (biased) variance of each row.
//!
//! Source: Ba, Kiros, Hinton, "Layer normalization", arXiv:1607.06450. The variance is summed from
//! `x - μ` and not as `E[x²] - μ²`, which cancels where the mean is large.

use crate::{Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types};
use serde::{Deserialize, Serialize};

/// Layer normalisation over the last axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerNorm {
    /// ε, added to the variance.
    pub eps: f64,
}

impl<'b> Expr<'b> {
    /// Normalises rows of self `[..., N]`; scale `[N]`, bias `[N]`.
    pub fn layer_norm(self, scale: Expr<'b>, bias: Expr<'b>, eps: f64) -> Expr<'b> {
        self.builder().op1(LayerNorm { eps }, &[self, scale, bias])
    }
}

impl LayerNorm {
    /// `(x - μ) / √(σ² + ε)` and `1 / √(σ² + ε)`.
    fn normalise<'b>(&self, x: Expr<'b>) -> (Expr<'b>, Expr<'b>) {
        let row = [x.rank() - 1];
        let centred = x - x.mean_keep(&row);
        let rstd = ((centred * centred).mean_keep(&row) + self.eps).rsqrt();
        (centred * rstd, rstd)
    }
}

impl Op for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, _, _] = types.exactly()?;
        types.same_float(types.operands)?;
        let row = x.shape.0.last().ok_or_else(|| Mismatch::new("x of [..., N]", x.to_string()))?;
        types.shaped(1, "a scale", vec![row.clone()])?;
        types.shaped(2, "a bias", vec![row.clone()])?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let [x, scale, bias] = [&args[0], &args[1], &args[2]];
        let mut y = Vec::with_capacity(x.len());
        for row in x.floats().chunks(scale.len().max(1)) {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let normal = |x: &f64| (x - mean) / (variance + self.eps).sqrt();
            y.extend(row.iter().enumerate().map(|(i, x)| normal(x) * scale.get(i) + bias.get(i)));
        }
        vec![Array::float(x.dtype, &x.shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (normal, _) = self.normalise(args[0].widen());
        vec![(normal * args[1].widen() + args[2].widen()).convert(args[0].dtype())]
    }

    /// With `n` the normalised x and `g = dy scale`: `dx = (g - mean g - n mean(g n)) / √(σ² + ε)`.
    /// The statistics are recomputed, since backward reads x in any case.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; 3]) };
        let (dtype, dy, scale) = (dy.dtype(), dy.widen(), g.inputs[1].widen());
        let (normal, rstd) = self.normalise(g.inputs[0].widen());
        let rows: Vec<usize> = (0..dy.rank() - 1).collect();
        let row = [dy.rank() - 1];
        let inner = dy * scale;
        let dx = (inner - inner.mean_keep(&row) - normal * (inner * normal).mean_keep(&row)) * rstd;
        let grads = [dx, (dy * normal).sum(&rows), dy.sum(&rows)];
        Some(grads.map(|grad| Some(grad.convert(dtype))).to_vec())
    }

    fn samples() -> Vec<Sample> {
        let sample = || Sample::new(LayerNorm { eps: 1e-5 });
        vec![
            sample().normal(["M", "N"]).normal(["N"]).normal(["N"]),
            sample().normal(["B", "T", "D"]).normal(["D"]).normal(["D"]),
            sample().normal([9usize]).normal([9usize]).normal([9usize]),
            // A large mean: E[x²] - μ² would lose every digit of the variance in f32.
            sample().uniform([3usize, 33], 30.0, 31.0).normal([33usize]).normal([33usize]),
        ]
    }
}
