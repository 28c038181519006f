//! SparseGPT. Going column by column, it removes those two weights of each four whose loss later
//! weights can best compensate. Then it compensates for the error in the later weights.
//!
//! With `Uᵀ U` the inverse of the damped Hessian, removing weight k costs `(w_k / U[k, k])²` and
//! changes the weights after it by `-w_k U[k, k..] / U[k, k]`. Source: Frantar and Alistarh,
//! "SparseGPT", arXiv:2301.00774, algorithm 1 with n:m.

use super::group::{GROUP, largest};
use crate::quantize::{damped, factor_of_inverse};

/// Prunes rows of `k`; `gram` is `[K, K]`.
pub(super) fn prune(rows: &mut [f64], k: usize, gram: &[f64]) {
    let factor =
        factor_of_inverse(damped(gram, k), k).expect("a damped Gram matrix is positive definite");
    rows.chunks_mut(k).for_each(|row| prune_row(row, &factor));
}

fn prune_row(row: &mut [f64], factor: &[f64]) {
    let k = row.len();
    let mut w = row.to_vec();
    let mut kept = [false; GROUP];
    for column in 0..k {
        let pivot = |column: usize| factor[column * (k + 1)];
        if column % GROUP == 0 {
            kept = largest((0..GROUP).map(|i| (w[column + i] / pivot(column + i)).powi(2)));
        }
        row[column] = if kept[column % GROUP] { w[column] } else { 0.0 };
        let error = (w[column] - row[column]) / pivot(column);
        w[column..]
            .iter_mut()
            .zip(&factor[column * k + column..])
            .for_each(|(w, u)| *w -= error * u);
    }
}
