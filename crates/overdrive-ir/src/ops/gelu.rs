//! `gelu(x)`: `x Φ(x)` with Φ the normal distribution function; `Φ(x) = (1 + erf(x/√2)) / 2`, or
//! the approximation `(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`.
//!
//! Source: Hendrycks and Gimpel, "Gaussian error linear units", arXiv:1606.08415. The two differ by
//! up to 5e-4, so a model names the one that it was trained with.

use crate::{
    Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// How Φ is computed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approximation {
    /// Exactly, by the error function.
    Erf,
    /// By the hyperbolic tangent, as GPT-2 does.
    Tanh,
}

/// The Gaussian error linear unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gelu {
    /// How Φ is computed.
    pub approximation: Approximation,
}

/// √(2/π)
const SLOPE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
const CUBIC: f64 = 0.044715;

impl<'b> Expr<'b> {
    /// `self Φ(self)`.
    pub fn gelu(self, approximation: Approximation) -> Expr<'b> {
        self.builder().op1(Gelu { approximation }, &[self])
    }
}

impl Gelu {
    /// `2 Φ(x) - 1`
    fn centred<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        match self.approximation {
            Approximation::Erf => (x * FRAC_1_SQRT_2).unary(Unary::Erf),
            Approximation::Tanh => (x * (x * x * CUBIC + 1.0) * SLOPE).tanh(),
        }
    }
}

impl Op for Gelu {
    const NAME: &'static str = "gelu";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        vec![args[0].map(|x| match self.approximation {
            Approximation::Erf => x * 0.5 * (1.0 + libm::erf(x / 2f64.sqrt())),
            Approximation::Tanh => x * 0.5 * (1.0 + (SLOPE * (x + CUBIC * x.powi(3))).tanh()),
        })]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        vec![(x * 0.5 * (self.centred(x) + 1.0)).convert(args[0].dtype())]
    }

    /// `Φ(x) + x Φ'(x)`. The derivative of the approximation is `2 u' σ(2u) σ(-2u)` with u the
    /// tangent's argument: `1 - tanh(u)²` cancels, and x³ would magnify what is left.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![g.cotangents[0].map(|dy| {
            let x = g.inputs[0].widen();
            let slope = match self.approximation {
                Approximation::Erf => {
                    self.centred(x) * 0.5 + 0.5 + x * (x * x * -0.5).exp() * (0.5 * SLOPE)
                }
                Approximation::Tanh => {
                    let twice = x * (x * x * CUBIC + 1.0) * (2.0 * SLOPE);
                    let (left, right) =
                        (twice.unary(Unary::Logistic), (-twice).unary(Unary::Logistic));
                    left + x * (x * x * (3.0 * CUBIC) + 1.0) * (2.0 * SLOPE) * left * right
                }
            };
            (dy.widen() * slope).convert(dy.dtype())
        })])
    }

    fn samples() -> Vec<Sample> {
        let sample = |approximation| Sample::new(Gelu { approximation });
        vec![
            sample(Approximation::Erf).normal(["M", "N"]),
            sample(Approximation::Tanh).normal(["M", "N"]),
            // Both tails, where one factor underflows.
            sample(Approximation::Erf).uniform(["N"], -12.0, 12.0),
            sample(Approximation::Tanh).uniform(["N"], -12.0, 12.0),
        ]
    }
}
