//! `global_avg_pool(x)`: the mean of x `[N, C, ...]` over all its spatial axes, giving `[N, C]`.
//!
//! Source: Lin, Chen, Yan, "Network in network", arXiv:1312.4400. The mean of no pixels is 0.

use crate::{Array, Builder, Expr, Graph, Mismatch, Op, Sample, Shape, TensorType, Types};
use serde::{Deserialize, Serialize};

/// Mean over all spatial axes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GlobalAvgPool;

impl<'b> Expr<'b> {
    /// The mean of self `[N, C, ...]` over all axes but the first two.
    pub fn global_avg_pool(self) -> Expr<'b> {
        self.builder().op1(GlobalAvgPool, &[self])
    }
}

impl Op for GlobalAvgPool {
    const NAME: &'static str = "global_avg_pool";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        if x.rank() < 3 {
            return Err(Mismatch::new("x of [N, C, ...] with a spatial axis", x.to_string()));
        }
        Ok(vec![x.with_shape(Shape(x.shape.0[..2].to_vec()))])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let pixels: usize = x.shape[2..].iter().product();
        let channel = |i: usize| {
            x.floats()[i * pixels..][..pixels].iter().sum::<f64>() / pixels.max(1) as f64
        };
        vec![Array::float(
            x.dtype,
            &x.shape[..2],
            (0..x.shape[0] * x.shape[1]).map(channel).collect(),
        )]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        let spatial: Vec<usize> = (2..x.rank()).collect();
        let pixels: usize = spatial.iter().map(|&axis| x.size(axis)).product();
        vec![(x.sum(&spatial) * (1.0 / pixels.max(1) as f64)).convert(args[0].dtype())]
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::new(GlobalAvgPool).normal(["N", "C", "H", "W"]),
            Sample::new(GlobalAvgPool).uniform([2usize, 3, 5], 10.0, 11.0),
        ]
    }
}
