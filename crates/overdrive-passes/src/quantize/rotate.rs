//! `rotate` multiplies the inputs of linear layers by a block-diagonal Hadamard matrix, and their
//! weights by the same: `x Wᵀ = (x R) (W R)ᵀ`, as `R Rᵀ = I`.
//!
//! An outlier of a block is thereby spread over the block, where formats of few bits have a scale
//! for each 16 or 32 elements. Blocks keep an outlier out of the scales of all others, which a
//! rotation of whole rows does not. Invariant: the graph computes the same, except for rounding.
//!
//! Sources: Ashkboos et al., "QuaRot", arXiv:2404.00456; blocks for FP4: Egiazarian et al.,
//! "Bridging the gap between promise and performance for microscaling FP4 quantization",
//! arXiv:2509.23202.

use super::coded::shared;
use super::held::LayerKind;
use super::layers::{Layer, layers};
use super::prepared_inputs::with_inputs;
use overdrive_ir::{DType, Dim, Expr, Graph, GraphError, Init, Shape, Tensor};

/// The graph with the inputs and weights of these linear layers rotated in blocks of `block`. If
/// this does not divide their inputs, blocks are of the largest power of two that does.
///
/// # Errors
/// When the graph is damaged.
pub fn rotate(
    graph: &Graph,
    block: usize,
    among: &dyn Fn(&Layer) -> bool,
) -> Result<Graph, GraphError> {
    let (mut found, _) = layers(graph)?;
    found.retain(|layer| layer.kind == LayerKind::Linear && among(layer));
    let of = |layer: &Layer| block.min(1 << layer.shape[1].trailing_zeros());
    let turned = |layer: Layer| {
        let mut rows = layer.rows(graph);
        rows.chunks_mut(of(&layer)).for_each(transform);
        (layer, rows)
    };
    let moved: Vec<(Layer, Vec<f64>)> = found.into_iter().map(turned).collect();
    with_inputs(graph, &moved, &|layer, x| turn(x, layer.shape[1], of(layer)))
}

/// x `[.., k]` times the block-diagonal matrix.
fn turn(x: Expr<'_>, k: usize, block: usize) -> Expr<'_> {
    if x.is_poison() {
        return x;
    }
    let mut matrix: Vec<f64> = vec![0.0; block * block];
    for (row, values) in matrix.chunks_mut(block).enumerate() {
        values[row] = 1.0;
        transform(values);
    }
    let tensor = Tensor::from_f64(DType::F32, [block, block], &matrix);
    let ty = tensor.ty().clone();
    let name = format!("rotation_{block}");
    let matrix = shared(x.builder(), &name, &ty, || Init::Value(tensor)).convert(x.dtype());
    let (whole, rank) = (x.shape(), x.rank());
    let mut apart = whole.0.clone();
    apart.splice(rank - 1.., [Dim::Size(k / block), Dim::Size(block)]);
    x.reshape(Shape(apart)).dot(matrix, &[], &[(rank, 0)]).reshape(whole)
}

/// Multiplies a block by the orthonormal, symmetric Hadamard matrix of its length, a power of two.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_orthonormal_and_spreads_an_outlier() {
        for length in [1, 2, 16, 32, 128] {
            let column = |i: usize| {
                let mut unit = vec![0.0; length];
                unit[i] = 1.0;
                transform(&mut unit);
                unit
            };
            let matrix: Vec<Vec<f64>> = (0..length).map(column).collect();
            let size = 1.0 / (length as f64).sqrt();
            for (i, row) in matrix.iter().enumerate() {
                assert!(row.iter().all(|x| (x.abs() - size).abs() < 1e-12), "{length}: {i}");
                for (j, other) in matrix.iter().enumerate() {
                    let product: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                    let expected = f64::from(u8::from(i == j));
                    assert!((product - expected).abs() < 1e-12, "{length}: {i}, {j}");
                    assert_eq!(row[j], matrix[j][i], "{length}: the matrix is symmetric");
                }
            }
        }
    }
}
