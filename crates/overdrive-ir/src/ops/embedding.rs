//! `embedding(table, indices)`: row `indices[...]` of table `[V, D]`, giving `[..., D]`.
//!
//! Indices out of range are clamped, as in `gather`. Source: Bengio et al., "A neural probabilistic
//! language model", JMLR 2003. The gradient adds rows of the cotangent up in the accumulation type:
//! a frequent token's thousands of small contributions would vanish in bf16.

use crate::{
    Array, Builder, Cost, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Prim, Reducer, Sample,
    Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Looks rows up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Embedding;

impl<'b> Expr<'b> {
    /// Rows of self `[V, D]` at integer indices of any shape.
    pub fn embedding(self, indices: Expr<'b>) -> Expr<'b> {
        self.builder().op1(Embedding, &[self, indices])
    }
}

/// `[...]` as `[..., 1]`, which `gather` and `scatter` along one axis take.
fn column(indices: Expr<'_>) -> Expr<'_> {
    let mut shape = indices.shape();
    shape.0.push(1.into());
    indices.reshape(shape)
}

impl Op for Embedding {
    const NAME: &'static str = "embedding";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [table, indices] = types.exactly()?;
        types.same_float(&types.operands[..1])?;
        if table.rank() != 2 || !indices.dtype.is_int() {
            let found = format!("{table} and {indices}");
            return Err(Mismatch::new("a table of [V, D] and integer indices", found));
        }
        if table.shape[0].size() == Some(0) && indices.shape.known().is_none_or(|s| !s.contains(&0))
        {
            return Err(Mismatch::new("a table with at least one row", table.to_string()));
        }
        let width = table.shape[1].clone();
        Ok(vec![table.with_shape(Shape(indices.shape.0.iter().cloned().chain([width]).collect()))])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (table, indices) = (&args[0], &args[1]);
        let (rows, width) = (table.shape[0], table.shape[1]);
        let row =
            |&i: &i128| &table.floats()[i.clamp(0, rows as i128 - 1) as usize * width..][..width];
        let data = indices.ints().iter().flat_map(row).copied().collect();
        vec![Array::float(table.dtype, &[&indices.shape[..], &[width]].concat(), data)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        vec![args[0].gather(column(args[1]), &[0])]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let dtable = g.cotangents[0].map(|dy| {
            let (table, rows) = (g.inputs[0].ty(), dy.widen());
            let zeros = g.builder.full(rows.dtype(), table.shape, 0.0);
            let add = Prim::Scatter { axes: vec![0], reducer: Some(Reducer::Sum) };
            g.builder.op1(add, &[zeros, column(g.inputs[1]), rows]).convert(table.dtype)
        });
        Some(vec![dtable, None])
    }

    /// Only the rows that are read count, not the table.
    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        Some(Cost { flops: 0, bytes: (2 * results[0].bytes() + operands[1].bytes()) as u64 })
    }

    fn samples() -> Vec<Sample> {
        let index = |dtype, shape: Shape, fill| (TensorType::new(dtype, shape), fill);
        let sample = |(ty, fill)| Sample::new(Embedding).normal([5usize, 4]).operand(ty, fill);
        let named = TensorType::new(DType::I64, ["B", "T"]);
        vec![
            Sample::new(Embedding)
                .normal([crate::Dim::from(11), "D".into()])
                .operand(named, Fill::Index(11)),
            sample(index(DType::I32, [7usize].into(), Fill::Index(5))),
            sample(index(DType::U8, Shape::default(), Fill::Values(vec![4.0]))),
            // Repeated rows, whose gradients add up, and indices beyond both ends.
            sample(index(
                DType::I32,
                [2usize, 3].into(),
                Fill::Values(vec![1.0, 1.0, 4.0, 9.0, -3.0, 1.0]),
            )),
        ]
    }
}
