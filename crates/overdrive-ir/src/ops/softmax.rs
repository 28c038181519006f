//! `softmax(x)` along one axis: `y_i = exp(x_i - max x) / sum_j exp(x_j - max x)`.
//!
//! Source: Bridle, "Probabilistic interpretation of feedforward classification network
//! outputs", 1990. The maximum is subtracted so that no exponential overflows.

use crate::eval::for_each_index;
use crate::{
    Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Reducer, Sample, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Softmax along `axis`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Softmax {
    /// The axis that sums to one.
    pub axis: usize,
}

impl<'b> Expr<'b> {
    /// Softmax along `axis`.
    pub fn softmax(self, axis: usize) -> Expr<'b> {
        self.builder().op1(Softmax { axis }, &[self])
    }
}

impl Op for Softmax {
    const NAME: &'static str = "softmax";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        if self.axis >= x.rank() {
            return Err(Mismatch::new(
                format!(
                    "an axis below {}",
                    x.rank()
                ),
                format!("axis {} of {x}", self.axis),
            ));
        }
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let mut y = vec![0.0; x.len()];
        let mut lines = x.shape.clone();
        lines[self.axis] = 1;
        for_each_index(&lines, |line| {
            let mut at = line.to_vec();
            let positions: Vec<usize> = (0..x.shape[self.axis])
                .map(|i| {
                    at[self.axis] = i;
                    x.position(&at)
                })
                .collect();
            let max = positions.iter().map(|&p| x.get(p)).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = positions.iter().map(|&p| (x.get(p) - max).exp()).sum();
            positions.iter().for_each(|&p| y[p] = (x.get(p) - max).exp() / sum);
        });
        vec![Array::float(x.dtype, &x.shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        let shifted = (x - x.reduce_keep(Reducer::Max, &[self.axis])).exp();
        vec![(shifted / shifted.reduce_keep(Reducer::Sum, &[self.axis])).convert(args[0].dtype())]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let y = g.outputs[0].widen();
        Some(vec![g.cotangents[0].map(|cotangent| {
            let dy = cotangent.widen();
            let along = (dy * y).reduce_keep(Reducer::Sum, &[self.axis]);
            ((dy - along) * y).convert(cotangent.dtype())
        })])
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::new(Softmax { axis: 1 }).normal(["M", "N"]),
            Sample::new(Softmax { axis: 0 }).normal(["M", "N"]),
            // Large inputs: exp of them overflows without the subtraction.
            Sample::new(Softmax { axis: 2 }).uniform([2usize, 3, 5], 900.0, 1000.0),
        ]
    }
}
