//! `max_pool2d(x)`: the largest element of each window of x `[N, C, H, W]`; padding is -∞ and never
//! wins.
//!
//! Source: Ranzato et al., "Unsupervised learning of invariant feature hierarchies", CVPR 2007.

use super::avg_pool2d::Pool2d;
use crate::{Array, Builder, Dim, Expr, Graph, Mismatch, Op, Reducer, Sample, TensorType, Types};
use serde::{Deserialize, Serialize};

/// Maximum over windows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MaxPool2d {
    /// Geometry of the windows.
    pub pool: Pool2d,
}

impl<'b> Expr<'b> {
    /// The largest element of each window of self `[N, C, H, W]`.
    pub fn max_pool2d(self, pool: Pool2d) -> Expr<'b> {
        self.builder().op1(MaxPool2d { pool }, &[self])
    }
}

impl Op for MaxPool2d {
    const NAME: &'static str = "max_pool2d";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        self.pool.infer(types)
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        vec![
            self.pool
                .eval(&args[0], |window| window.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        vec![self.pool.reduce(args[0], Reducer::Max)]
    }

    fn samples() -> Vec<Sample> {
        let uneven = Pool2d { window: [3, 2], stride: [2, 1], pad: [[1, 2], [0, 1]] };
        vec![
            Sample::new(MaxPool2d { pool: Pool2d::new(2, 2) }).normal([
                Dim::from("N"),
                "C".into(),
                6.into(),
                4.into(),
            ]),
            // Overlapping windows; all elements below zero, so that a zero from the padding would
            // show.
            Sample::new(MaxPool2d { pool: uneven }).uniform([2usize, 3, 7, 5], -2.0, -1.0),
        ]
    }
}
