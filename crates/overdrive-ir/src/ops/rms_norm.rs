//! `rms_norm(x, scale)` over the last axis: `x / √(mean(x²) + ε) scale`.
//!
//! Source: Zhang and Sennrich, "Root mean square layer normalization", arXiv:1910.07467.

use crate::{Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types};
use serde::{Deserialize, Serialize};

/// Root-mean-square normalisation over the last axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RmsNorm {
    /// ε, added to the mean square.
    pub eps: f64,
}

impl<'b> Expr<'b> {
    /// Normalises rows of self `[..., N]`; scale `[N]`.
    pub fn rms_norm(self, scale: Expr<'b>, eps: f64) -> Expr<'b> {
        self.builder().op1(RmsNorm { eps }, &[self, scale])
    }
}

impl RmsNorm {
    /// `1 / √(mean(x²) + ε)` of each row.
    fn reciprocal<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        ((x * x).mean_keep(&[x.rank() - 1]) + self.eps).rsqrt()
    }
}

impl Op for RmsNorm {
    const NAME: &'static str = "rms_norm";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, _] = types.exactly()?;
        types.same_float(types.operands)?;
        let row = x.shape.0.last().ok_or_else(|| Mismatch::new("x of [..., N]", x.to_string()))?;
        types.shaped(1, "a scale", vec![row.clone()])?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let [x, scale] = [&args[0], &args[1]];
        let mut y = Vec::with_capacity(x.len());
        for row in x.floats().chunks(scale.len().max(1)) {
            let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let root = (mean_square + self.eps).sqrt();
            y.extend(row.iter().enumerate().map(|(i, x)| x / root * scale.get(i)));
        }
        vec![Array::float(x.dtype, &x.shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        vec![(x * self.reciprocal(x) * args[1].widen()).convert(args[0].dtype())]
    }

    /// With `n = x r` and `g = dy scale`: `dx = (g - n mean(g n)) r`.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; 2]) };
        let (dtype, dy, x) = (dy.dtype(), dy.widen(), g.inputs[0].widen());
        let r = self.reciprocal(x);
        let normal = x * r;
        let inner = dy * g.inputs[1].widen();
        let dx = (inner - normal * (inner * normal).mean_keep(&[x.rank() - 1])) * r;
        let rows: Vec<usize> = (0..x.rank() - 1).collect();
        let grads = [dx, (dy * normal).sum(&rows)];
        Some(grads.map(|grad| Some(grad.convert(dtype))).to_vec())
    }

    fn samples() -> Vec<Sample> {
        let sample = || Sample::new(RmsNorm { eps: 1e-6 });
        vec![
            sample().normal(["M", "N"]).normal(["N"]),
            sample().normal(["B", "T", "D"]).normal(["D"]),
            sample().normal([9usize]).normal([9usize]),
            // Rows so small that ε decides.
            sample().uniform([2usize, 5], -1e-4, 1e-4).normal([5usize]),
        ]
    }
}
