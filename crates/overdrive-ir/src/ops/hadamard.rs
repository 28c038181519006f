//! `hadamard(x)`: each block of `block` elements of a row of x `[..., K]` times the orthonormal
//! Hadamard matrix of that size: `y[j] = Σ_i x[i] (-1)^popcount(i & j) / √block`.
//!
//! The matrix is symmetric, so it is its own inverse and its own gradient. A block is a power of
//! two and divides K. The order of the elements is Sylvester's, as in QuaRot and in
//! compressed-tensors. Source: Ashkboos et al., "QuaRot", arXiv:2404.00456.

use crate::{
    Array, Builder, Dim, Expr, Gradient, Graph, Mismatch, Op, Sample, Tensor, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The Hadamard transform of blocks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hadamard {
    /// Elements of a block, a power of two.
    pub block: usize,
}

impl<'b> Expr<'b> {
    /// Each block of the rows of self times the Hadamard matrix.
    pub fn hadamard(self, block: usize) -> Expr<'b> {
        self.builder().op1(Hadamard { block }, &[self])
    }
}

impl Hadamard {
    /// Transforms whole rows, whose elements are multiples of a block.
    pub fn transform(&self, values: &mut [f64]) {
        values.chunks_mut(self.block).for_each(transform);
    }

    /// The matrix, row-major.
    pub fn matrix(&self) -> Vec<f64> {
        let mut matrix = vec![0.0; self.block * self.block];
        matrix.iter_mut().step_by(self.block + 1).for_each(|x| *x = 1.0);
        self.transform(&mut matrix);
        matrix
    }
}

/// Transforms one block, by halves.
fn transform(values: &mut [f64]) {
    let mut half = 1;
    while half < values.len() {
        for pair in values.chunks_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let norm = (values.len() as f64).sqrt();
    values.iter_mut().for_each(|x| *x /= norm);
}

impl Op for Hadamard {
    const NAME: &'static str = "hadamard";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        match x.shape.0.last() {
            Some(Dim::Size(k)) if self.block.is_power_of_two() && k.is_multiple_of(self.block) => {
                Ok(vec![x.clone()])
            }
            _ => {
                let expected = "x of [..., K] and a block that is a power of two and divides K";
                let found = format!("{x} and a block of {}", self.block);
                Err(Mismatch::new(expected, found).remedy("take a smaller block"))
            }
        }
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let sum = |at: usize| {
            let (start, j) = (at / self.block * self.block, at % self.block);
            let sign = |i: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            (0..self.block).map(|i| sign(i) * x.get(start + i)).sum::<f64>()
        };
        let y = (0..x.len()).map(|at| sum(at) / (self.block as f64).sqrt()).collect();
        vec![Array::float(x.dtype, &x.shape, y)]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, block) = (args[0], self.block);
        let matrix = b.constant(Tensor::from_f64(x.dtype(), [block, block], &self.matrix()));
        let (sizes, rank) = (x.sizes(), x.rank());
        let blocks = [&sizes[..rank - 1], &[sizes[rank - 1] / block, block]].concat();
        vec![x.reshape(blocks).dot(matrix, &[], &[(rank, 0)]).reshape(sizes)]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![g.cotangents[0].map(|dy| dy.hadamard(self.block))])
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::new(Hadamard { block: 1 }).normal([3usize, 5]),
            Sample::new(Hadamard { block: 8 }).normal([3usize, 24]),
            Sample::new(Hadamard { block: 32 }).normal([2usize, 3, 64]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_orthonormal_symmetric_and_flat() {
        for block in [1, 2, 16, 32, 128] {
            let matrix = Hadamard { block }.matrix();
            let size = 1.0 / (block as f64).sqrt();
            assert!(matrix.iter().all(|x| (x.abs() - size).abs() < 1e-12), "{block}");
            let rows: Vec<&[f64]> = matrix.chunks(block).collect();
            for (i, row) in rows.iter().enumerate() {
                for (j, other) in rows.iter().enumerate() {
                    let product: f64 = row.iter().zip(*other).map(|(a, b)| a * b).sum();
                    let expected = f64::from(u8::from(i == j));
                    assert!((product - expected).abs() < 1e-12, "{block}: {i}, {j}");
                    assert_eq!(row[j], other[i], "{block}: the matrix is symmetric");
                }
            }
        }
    }
}
