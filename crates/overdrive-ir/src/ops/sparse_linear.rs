//! `sparse_linear(x, values, mask)`: `y = x W^T`, with x `[..., K]` and `W = unpack_24(values,
//! mask)` `[N, K]`.
//!
//! A linear layer whose weight keeps two of each four elements (2:4 sparsity). The weight is values
//! `[N, K/2]` and a mask of their places, `u8 [N, ⌈K/8⌉]`, as for `unpack_24`. Each group of the
//! mask has at least two bits set, because sparse tensor cores cannot encode fewer. Code that
//! stores a mask ensures this, and code that reads one from a file checks it. Sparse tensor cores
//! multiply only the values that are kept, half of the products. Bias and activation are separate
//! ops. Source: Mishra et al., "Accelerating sparse deep neural networks", arXiv:2104.08378.

use super::unpack_24::Unpack24;
use crate::{
    Array, Builder, Cost, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Sample, Shape, TensorType,
    Types,
};
use serde::{Deserialize, Serialize};

/// A product by a 2:4 weight.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SparseLinear;

impl<'b> Expr<'b> {
    /// `self W^T` by the values and the mask of a 2:4 weight: self `[..., K]`.
    pub fn sparse_linear(self, values: Expr<'b>, mask: Expr<'b>) -> Expr<'b> {
        self.builder().op1(SparseLinear, &[self, values, mask])
    }
}

impl Op for SparseLinear {
    const NAME: &'static str = "sparse_linear";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, values, _] = types.exactly()?;
        types.same_float(&[x.clone(), values.clone()])?;
        let weight = Unpack24.infer(&Types { operands: &types.operands[1..3], regions: &[] })?;
        let [outputs, inputs] = [0, 1].map(|axis| weight[0].shape.0[axis].clone());
        if x.rank() < 1 || x.shape.0.last() != Some(&inputs) {
            let remedy = "the last dimension of x is that of the weight, twice that of the values";
            return Err(
                Mismatch::new(format!("x of [..., {inputs}]"), x.to_string()).remedy(remedy)
            );
        }
        let mut shape = x.shape.clone();
        *shape.0.last_mut().expect("x has a last dimension") = outputs;
        Ok(vec![x.with_shape(shape)])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, weight) = (&args[0], &Unpack24.eval(&args[1..3], &[])[0]);
        let [n, k] = [weight.shape[0], weight.shape[1]];
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("x has a last dimension") = n;
        let rows: usize = x.shape[..x.shape.len() - 1].iter().product();
        let mut y = Vec::with_capacity(rows * n);
        for row in 0..rows {
            for output in 0..n {
                y.push(
                    (0..k).map(|i| x.get(row * k + i) * weight.get(output * k + i)).sum::<f64>(),
                );
            }
        }
        vec![Array::float(x.dtype, &shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        vec![args[0].linear(args[1].unpack_24(args[2]).t(), None)]
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|ty| ty.bytes() as u64).sum();
        // Two for each value that stays.
        let kept = operands[1].sizes()[1] as u64;
        Some(Cost { flops: (2 * results[0].elements() as u64).saturating_mul(kept), bytes })
    }

    fn samples() -> Vec<Sample> {
        // Every pair of places of four. Also groups with more than two bits, where the first two
        // count.
        let places = Fill::Values(vec![53.0, 172.0, 102.0, 147.0, 255.0, 198.0]);
        let sample = |x: Shape, n: usize, k: usize| {
            let mask = TensorType::new(DType::U8, [n, k.div_ceil(8)]);
            Sample::new(SparseLinear).normal(x).normal([n, k / 2]).operand(mask, places.clone())
        };
        vec![
            sample(["B".into(), Dim::Size(16)].into(), 5, 16),
            sample(["B".into(), "T".into(), Dim::Size(12)].into(), 3, 12),
            sample([7usize, 128].into(), 8, 128),
        ]
    }
}
