//! `relu(x)`: `max(x, 0)`; the gradient at 0 is 0.
//!
//! Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines",
//! ICML 2010.

use crate::{
    Array, Builder, Compare, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The rectifier.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Relu;

impl<'b> Expr<'b> {
    /// `max(self, 0)`.
    pub fn relu(self) -> Expr<'b> {
        self.builder().op1(Relu, &[self])
    }
}

impl Op for Relu {
    const NAME: &'static str = "relu";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        vec![args[0].map(|x| if x.is_nan() { x } else { x.max(0.0) })]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        vec![args[0].max(args[0].constant(0.0))]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let x = g.inputs[0];
        let zero = x.constant(0.0);
        Some(vec![g.cotangents[0].map(|dy| x.compare(Compare::Gt, zero).select(dy, zero))])
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::new(Relu).normal(["M", "N"]), Sample::new(Relu).uniform(["N"], -1e-30, 1e-30)]
    }
}
