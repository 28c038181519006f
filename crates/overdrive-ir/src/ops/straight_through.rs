//! `straight_through(value, path)`: the value of the first, the gradient of the second.
//!
//! This is the one op whose gradient is by design not that of its value. Rounding has the gradient
//! 0 almost everywhere, so code that trains through it chooses another path for the gradient. With
//! a path that is constant, the gradient stops. The second operand is never computed for the
//! result. Its gradient is exactly the one that arrives. Source: Bengio, Leonard and Courville,
//! "Estimating or propagating gradients through stochastic neurons", arXiv:1308.3432. Esser et al.,
//! arXiv:1902.08153, appendix B, have it as `gradscale` and `roundpass`.

use crate::{Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types};
use serde::{Deserialize, Serialize};

/// A value with the gradient of another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StraightThrough;

impl<'b> Expr<'b> {
    /// Self, with gradients that go along `path`, of the same type.
    pub fn straight_through(self, path: Expr<'b>) -> Expr<'b> {
        self.builder().op1(StraightThrough, &[self, path])
    }
}

impl Op for StraightThrough {
    const NAME: &'static str = "straight_through";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [value, path] = types.exactly()?;
        types.same_float(types.operands)?;
        if value.shape != path.shape {
            let expected = format!("a path of the value's type {value}");
            return Err(Mismatch::new(expected, path.to_string()).remedy(
                "broadcast or reshape the path",
            ));
        }
        Ok(vec![value.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        vec![args[0].clone()]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        vec![args[0]]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![None, g.cotangents[0]])
    }

    fn samples() -> Vec<Sample> {
        let sample = || Sample::new(StraightThrough);
        vec![
            sample().normal(["M", "N"]).normal(["M", "N"]),
            sample().normal(["N"]).uniform(["N"], -1.0, 1.0),
        ]
    }
}
