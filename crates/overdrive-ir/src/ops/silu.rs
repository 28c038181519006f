//! `silu(x)`: `x σ(x)`, with `σ(x) = 1 / (1 + exp(-x))`.
//!
//! Source: Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units for neural network function
//! approximation in reinforcement learning", arXiv:1702.03118. It is also known as swish
//! (Ramachandran et al., arXiv:1710.05941).

use crate::{
    Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// The sigmoid linear unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Silu;

impl<'b> Expr<'b> {
    /// `self σ(self)`.
    pub fn silu(self) -> Expr<'b> {
        self.builder().op1(Silu, &[self])
    }
}

impl Op for Silu {
    const NAME: &'static str = "silu";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        vec![args[0].map(|x| x / (1.0 + (-x).exp()))]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        vec![(x * x.unary(Unary::Logistic)).convert(args[0].dtype())]
    }

    /// `σ (1 + x (1 - σ))`
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![g.cotangents[0].map(|dy| {
            let x = g.inputs[0].widen();
            let sigma = x.unary(Unary::Logistic);
            (dy.widen() * sigma * (x * (1.0 - sigma) + 1.0)).convert(dy.dtype())
        })])
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::new(Silu).normal(["M", "N"]), Sample::new(Silu).uniform(["N"], -80.0, 80.0)]
    }
}
