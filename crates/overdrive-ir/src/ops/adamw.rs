//! `adamw(p, g, m, v, step, lr)`: one step of Adam with decoupled weight decay.
//!
//! Formulas:
//! - `m' = β₁ m + (1 - β₁) g`
//! - `v' = β₂ v + (1 - β₂) g²`
//! - `p' = p - lr (m' / (1 - β₁ᵗ) / (√(v' / (1 - β₂ᵗ)) + ε) + λ p)`
//!
//! The results are `(p', m', v')`. t is `step`, which counts from 1. `1 - βᵗ` is computed as
//! `-expm1(t ln β)`: at t = 1 and β₂ = 0.999 the difference would lose four of f32's seven digits.
//! Sources: Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv:1711.05101,
//! algorithm 2; Kingma and Ba, arXiv:1412.6980.

use crate::{
    Array, Builder, DType, Expr, Fill, Graph, Mismatch, Op, Sample, TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// The update rule.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdamW {
    /// Decay of the first and the second moment, β₁ and β₂.
    pub betas: [f64; 2],
    /// ε, added to the root of the second moment.
    pub eps: f64,
    /// λ, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 }
    }
}

impl<'b> Expr<'b> {
    /// The parameter self, its gradient and moments `[g, m, v]` of its shape, the step (integer,
    /// from 1) and the learning rate (scalars). Returns the new `[p, m, v]`.
    pub fn adamw(
        self,
        [g, m, v]: [Expr<'b>; 3],
        step: Expr<'b>,
        lr: Expr<'b>,
        rule: AdamW,
    ) -> [Expr<'b>; 3] {
        let results = self.builder().op(rule, &[self, g, m, v, step, lr]);
        [results[0], results[1], results[2]]
    }
}

impl Op for AdamW {
    const NAME: &'static str = "adamw";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [p, g, m, v, step, lr] = types.exactly()?;
        types.same_float(&[p.clone(), m.clone(), v.clone()])?;
        for float in [g, lr] {
            types.same_float(std::slice::from_ref(float))?;
        }
        for (index, name) in [(1, "a gradient"), (2, "a first moment"), (3, "a second moment")] {
            types.shaped(index, name, p.shape.clone())?;
        }
        if !step.dtype.is_int() || step.rank() != 0 || lr.rank() != 0 {
            let found = format!("step {step}, lr {lr}");
            return Err(Mismatch::new("an integer scalar step and a float scalar lr", found));
        }
        if self.betas.iter().any(|beta| !(0.0..1.0).contains(beta)) {
            return Err(Mismatch::new(
                "betas of at least 0 and below 1",
                format!("{:?}", self.betas),
            ));
        }
        Ok(vec![p.clone(), m.clone(), v.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let [p, g, m, v, step, lr] = args else { unreachable!("types were inferred") };
        let ([beta1, beta2], t, lr) = (self.betas, step.get(0), lr.get(0));
        let new = |f: &dyn Fn(usize) -> f64| {
            Array::float(p.dtype, &p.shape, (0..p.len()).map(f).collect())
        };
        let m = new(&|i| beta1 * m.get(i) + (1.0 - beta1) * g.get(i));
        let v = new(&|i| beta2 * v.get(i) + (1.0 - beta2) * g.get(i).powi(2));
        let p = new(&|i| {
            let first = m.get(i) / (1.0 - beta1.powf(t));
            let second = v.get(i) / (1.0 - beta2.powf(t));
            p.get(i) - lr * (first / (second.sqrt() + self.eps) + self.weight_decay * p.get(i))
        });
        vec![p, m, v]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let dtype = args[0].dtype();
        let [p, m, v] = [args[0], args[2], args[3]].map(Expr::widen);
        let [g, t, lr] = [args[1], args[4], args[5]].map(|x| x.convert(p.dtype()));
        let [beta1, beta2] = self.betas;
        let m = m * beta1 + g * (1.0 - beta1);
        let v = v * beta2 + g * g * (1.0 - beta2);
        // The scalars first, so that an element costs one root and one division.
        let correction = |beta: f64| -(t * beta.ln()).unary(Unary::Expm1);
        let rate = lr / correction(beta1);
        let spread = correction(beta2).rsqrt();
        let step = m * rate / (v.sqrt() * spread + self.eps);
        let p = p * (1.0 - lr * self.weight_decay) - step;
        [p, m, v].map(|new| new.convert(dtype)).to_vec()
    }

    fn samples() -> Vec<Sample> {
        let sample = |rule: AdamW, shape: crate::Shape, step: f64| {
            let sample =
                Sample::new(rule).normal(shape.clone()).normal(shape.clone()).normal(shape.clone());
            let sample = sample.uniform(shape, 0.1, 2.0);
            let sample = sample.operand(TensorType::scalar(DType::I64), Fill::Values(vec![step]));
            sample.uniform(crate::Shape::default(), 1e-3, 1e-2)
        };
        let plain = AdamW { betas: [0.0, 0.9], eps: 1e-3, weight_decay: 0.0 };
        vec![
            sample(AdamW::default(), ["M", "N"].into(), 1.0),
            sample(AdamW::default(), [7usize].into(), 100_000.0),
            sample(plain, [2usize, 3].into(), 2.0),
        ]
    }
}
