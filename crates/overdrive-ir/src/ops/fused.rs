//! `fused(x...)`: the region it replaced, as one op.
//!
//! Passes generate this op when they fuse. The body *is* the sub-graph that stood there, so that
//! every fused kernel carries its own oracle and every back end can still run it.

use crate::{Array, Builder, Expr, Graph, Mismatch, Op, Sample, TensorType, Types, eval};
use serde::{Deserialize, Serialize};

/// A region applied to operands.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fused {
    /// The ops inside, for people: `linear+gelu`.
    pub label: String,
}

impl Op for Fused {
    const NAME: &'static str = "fused";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [region] = types.regions else {
            return Err(Mismatch::new("one region", types.regions.len().to_string()));
        };
        let inputs: Vec<TensorType> =
            region.inputs().iter().map(|p| region.ty(p.value).clone()).collect();
        if inputs != types.operands || !region.states().is_empty() {
            let list = |t: &[TensorType]| {
                t.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
            };
            return Err(Mismatch::new(
                format!("operands ({})", list(&inputs)),
                list(types.operands),
            ));
        }
        Ok(region.outputs().iter().map(|p| region.ty(p.value).clone()).collect())
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        eval::eval_region(&regions[0], args)
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        b.inline(&regions[0], args)
    }

    fn samples() -> Vec<Sample> {
        let region = Builder::new("fused");
        let ty = TensorType::new(crate::DType::F32, [2usize, 3]);
        let (x, y) = (region.input("x", ty.clone()), region.input("y", ty));
        let sum = x * y + 1.0;
        region.output("sum", sum);
        region.output("scaled", sum.softmax(1));
        let region = region.finish().expect("the sample is well typed");
        vec![
            Sample::new(Fused { label: "mul+add+softmax".into() })
                .normal([2usize, 3])
                .normal([2usize, 3])
                .region(region),
        ]
    }
}
