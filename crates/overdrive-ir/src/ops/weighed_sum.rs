//! `weighed_sum(weights, y...)`: the sum of tensors whose rows have weights, most of which are 0.
//!
//! For `weights` `[..., E]`, tensors y_0, y_1, ... `[..., D]` and the attribute `first`, row r of
//! the result `[..., D]` is the sum of `weights[r, first + i] y_i[r]`. The experts of a mixture are
//! such tensors. A y of weight 0 counts for nothing if it is finite. A kernel does not read it, so
//! that a plan need not compute a y whose weights are all 0 (`Step::only_if`). The expansion reads
//! all. Source: Shazeer et al., arXiv:1701.06538, equation 1.

use crate::{Array, Builder, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Sample, Shape};
use crate::{TensorType, Types};
use serde::{Deserialize, Serialize};

/// A sum of tensors with a weight for each row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WeighedSum {
    /// The column of the weights of the first tensor; those of the others follow.
    pub first: usize,
}

impl<'b> Expr<'b> {
    /// The sum of `tensors` `[..., D]`, each times a column of self `[..., E]`, from column `first`
    /// on.
    pub fn weighed_sum(self, first: usize, tensors: &[Expr<'b>]) -> Expr<'b> {
        self.builder().op1(WeighedSum { first }, &[&[self], tensors].concat())
    }
}

impl Op for WeighedSum {
    const NAME: &'static str = "weighed_sum";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let expected = "weights of [..., E], and at least one tensor of [..., D]";
        let found = || {
            let types: Vec<String> = types.operands.iter().map(TensorType::to_string).collect();
            types.join(", ")
        };
        let [weights, y, others @ ..] = types.operands else {
            return Err(Mismatch::new(expected, found()));
        };
        types.same_float(types.operands)?;
        if let Some(other) = others.iter().find(|other| *other != y) {
            return Err(Mismatch::new(format!("tensors of one shape, {y}"), other.to_string()));
        }
        let (Some((columns, rows)), Some((_, of_y))) =
            (weights.shape.0.split_last(), y.shape.0.split_last())
        else {
            return Err(Mismatch::new(expected, found()));
        };
        if rows != of_y {
            return Err(Mismatch::new("weights for the rows of the tensors", found()));
        }
        let last = self.first + 1 + others.len();
        match columns {
            Dim::Size(columns) if *columns >= last => Ok(vec![y.clone()]),
            _ => Err(Mismatch::new(format!("weights in {last} columns"), found())),
        }
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (weights, tensors) = (&args[0], &args[1..]);
        let y = &tensors[0];
        vec![Array::build(y.dtype, &y.shape, |at| {
            let mut place = at.to_vec();
            let column = place.len() - 1;
            let terms = tensors.iter().enumerate().map(|(i, y)| {
                place[column] = self.first + i;
                let weight = weights.at(&place);
                if weight == 0.0 { 0.0 } else { weight * y.at(at) }
            });
            terms.sum()
        })]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (weights, axis) = (args[0].widen(), args[0].rank() - 1);
        let term = |(i, y): (usize, &Expr<'b>)| {
            // Not a slice: the number of rows may be a name.
            let column = b.full(DType::I32, [1usize], (self.first + i) as f64);
            let weight = weights.gather(column, &[axis]);
            let mut rows: Vec<Dim> = weights.shape().0[..axis].to_vec();
            rows.push(1.into());
            y.widen() * weight.reshape(Shape(rows))
        };
        let sum = args[1..].iter().enumerate().map(term).reduce(|sum, next| sum + next);
        vec![sum.expect("the op has a tensor").convert(args[1].dtype())]
    }

    fn samples() -> Vec<Sample> {
        // Rows of which all, some and none of the tensors have a weight.
        let weights = |shape: [Dim; 2]| {
            let values = vec![0.0, 0.75, 0.0, -0.5, 0.25, 1.5, 0.0, 0.0, 0.0, 2.0];
            (TensorType::new(DType::F32, Shape(shape.to_vec())), Fill::Values(values))
        };
        let of = |first: usize, (ty, fill): (TensorType, Fill)| {
            Sample::new(WeighedSum { first }).operand(ty, fill)
        };
        let named = weights(["M".into(), 3.into()]);
        vec![
            of(0, named).normal(["M", "N"]).normal(["M", "N"]).normal(["M", "N"]),
            of(2, weights([7.into(), 5.into()])).normal([7usize, 33]).normal([7usize, 33]),
        ]
    }
}
