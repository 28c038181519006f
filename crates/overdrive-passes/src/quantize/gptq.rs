//! GPTQ: rounds the columns of a weight one by one, and has those that follow make up for the error
//! of each.
//!
//! With `H = X Xᵀ` over calibration rows and `Uᵀ U = H⁻¹`, rounding column k of a row with error e
//! changes the columns after it by `-e U[k, k..] / U[k, k]`, which is the best linear answer.
//! Groups take their scale when they are reached. Source: Frantar et al., "GPTQ", arXiv:2210.17323
//! (algorithm 1, damping of 1 %); a scale is the one of a few around the largest magnitude that
//! errs least, as in the authors' code.

use super::linear_algebra::{damped, factor_of_inverse};
use overdrive_ir::{BlockFormat, BlockIndex, Encoded, Grid};

/// Codes of `values` `[N, K]`, which the format is known to take; `gram` is `[K, K]`.
pub(super) fn gptq(
    values: &[f64],
    shape: [usize; 2],
    format: &BlockFormat,
    gram: &[f64],
) -> Encoded {
    let [n, k] = shape;
    let factor =
        factor_of_inverse(&damped(gram, k), k).expect("a damped Gram matrix is positive definite");
    let counts = format.block.counts(shape).expect("the caller has encoded with this format");
    let group = k.checked_div(counts[1]).unwrap_or(1).max(1);
    let tensor_scale = format.tensor_scale(values);
    let scale = tensor_scale.unwrap_or(1.0);
    let shared = (counts[0] != n).then(|| best_grid(values, format, scale));
    let mut codes = vec![0.0; n * k];
    let mut grids = vec![Grid { scale: 1.0, zero: 0.0 }; counts[0] * counts[1]];
    let index = BlockIndex::new(shape, counts);
    for row in 0..n {
        let mut w = values[row * k..(row + 1) * k].to_vec();
        for column in 0..k {
            let at = row * k + column;
            if column % group == 0 {
                let whole = &w[column..(column + group).min(k)];
                grids[index.at(at)] = shared.unwrap_or_else(|| best_grid(whole, format, scale));
            }
            let grid = grids[index.at(at)];
            codes[at] = format.code(w[column], grid);
            let row_of_factor = &factor[column * k..(column + 1) * k];
            let error = (w[column] - format.value(codes[at], grid)) / row_of_factor[column];
            w[column..].iter_mut().zip(&row_of_factor[column..]).for_each(|(w, u)| *w -= error * u);
        }
    }
    format.assemble(&codes, &grids, shape, tensor_scale)
}

/// Shares of the range that are tried.
const SHARES: [f64; 9] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6];

/// The grid for these values that errs least in the mean square.
pub(super) fn best_grid(values: &[f64], format: &BlockFormat, tensor_scale: f64) -> Grid {
    let ends = values.iter().fold([0.0f64; 2], |[low, high], &x| [low.min(x), high.max(x)]);
    let error = |grid: &Grid| -> f64 {
        values.iter().map(|&x| (x - format.value(format.code(x, *grid), *grid)).powi(2)).sum()
    };
    let grids = SHARES.map(|share| format.grid(ends.map(|x| x * share), tensor_scale));
    let best =
        grids.into_iter().map(|grid| (error(&grid), grid)).min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("there are shares").1
}
