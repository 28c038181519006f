//! `linear(x, w, b?)`: `y = x w + b`, with x `[..., K]`, w `[K, N]`, b `[N]`.
//!
//! The affine layer of every model here. Weights are stored input-major, so that the formula reads
//! as written. Source: Rumelhart, Hinton, Williams, "Learning representations by back-propagating
//! errors", Nature 1986.

use crate::{
    Array, Builder, Expr, Gradient, Graph, Mismatch, Op, Reducer, Sample, Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The affine layer. The bias operand may be absent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Linear;

impl<'b> Expr<'b> {
    /// `self w + bias`: self `[..., K]`, w `[K, N]`, bias `[N]`.
    pub fn linear(self, w: Expr<'b>, bias: Option<Expr<'b>>) -> Expr<'b> {
        let operands: Vec<Expr<'b>> = [self, w].into_iter().chain(bias).collect();
        self.builder().op1(Linear, &operands)
    }
}

impl Op for Linear {
    const NAME: &'static str = "linear";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let (x, w, bias) = match types.operands {
            [x, w] => (x, w, None),
            [x, w, bias] => (x, w, Some(bias)),
            _ => {
                return Err(Mismatch::new(
                    "x, w and at most a bias",
                    format!("{} operands", types.operands.len()),
                ));
            }
        };
        types.same_float(types.operands)?;
        if w.rank() != 2 || x.rank() < 1 || x.shape.0.last() != Some(&w.shape[0]) {
            let expected = format!(
                "x of [..., {}] and w of [K, N]",
                w.shape.0.first().map_or("K".into(), |d| d.to_string())
            );
            let remedy = "the last dimension of x must be the first of w";
            return Err(Mismatch::new(expected, format!("x {x} and w {w}")).remedy(remedy));
        }
        if let Some(bias) = bias.filter(|b| b.shape != Shape(vec![w.shape[1].clone()])) {
            return Err(Mismatch::new(format!("a bias of [{}]", w.shape[1]), bias.to_string()));
        }
        let mut shape = x.shape.clone();
        *shape.0.last_mut().expect("x has a last dimension") = w.shape[1].clone();
        Ok(vec![x.with_shape(shape)])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, w) = (&args[0], &args[1]);
        let (k, n) = (w.shape[0], w.shape[1]);
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("x has a last dimension") = n;
        let rows: usize = x.shape[..x.shape.len() - 1].iter().product();
        let mut y = Vec::with_capacity(rows * n);
        for row in 0..rows {
            for column in 0..n {
                let bias = args.get(2).map_or(0.0, |b| b.get(column));
                let products = (0..k).map(|i| x.get(row * k + i) * w.get(i * n + column));
                y.push(products.sum::<f64>() + bias);
            }
        }
        vec![Array::float(x.dtype, &shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let product = args[0].dot(args[1], &[], &[(args[0].rank() - 1, 0)]);
        vec![args.get(2).map_or(product, |bias| product + *bias)]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; g.inputs.len()]) };
        let (x, w) = (g.inputs[0], g.inputs[1]);
        let last = x.rank() - 1;
        let rows: Vec<usize> = (0..last).collect();
        let pairs: Vec<(usize, usize)> = rows.iter().map(|&i| (i, i)).collect();
        let mut grads = vec![Some(dy.dot(w, &[], &[(last, 1)])), Some(x.dot(dy, &[], &pairs))];
        if g.inputs.len() == 3 {
            grads.push(Some(dy.reduce(Reducer::Sum, &rows)));
        }
        Some(grads)
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::new(Linear).normal(["B", "K"]).normal(["K", "N"]).normal(["N"]),
            Sample::new(Linear).normal(["B", "T", "K"]).normal(["K", "N"]),
            Sample::new(Linear).normal([7usize]).normal([7usize, 5]).normal([5usize]),
        ]
    }
}
