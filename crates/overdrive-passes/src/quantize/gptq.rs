//! GPTQ rounds the columns of a weight one by one. The columns that follow make up for the error of
//! each.
//!
//! Let `H = X Xᵀ` over calibration rows and `Uᵀ U = H⁻¹`. Rounding column k of a row with error e
//! changes the columns after it by `-e U[k, k..] / U[k, k]`, which is the best linear answer.
//! Groups take their scale when they are reached. A scale is the one of a few around the largest
//! magnitude that errs least, as in the authors' code. Source: Frantar et al., "GPTQ",
//! arXiv:2210.17323 (algorithm 1, damping of 1 %).

use super::linear_algebra::{damped, factor_of_inverse, share};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, s};
use overdrive_ir::{BlockFormat, Encoded, Grid};
use std::thread;

/// Columns whose errors reach those behind them in one product (section 3.3, "lazy batch-updates").
const COLUMNS: usize = 128;
/// Rows that are rounded together: enough to reuse a factor that is larger than caches.
const ROWS: usize = 256;

/// `U`, upper triangular, of a layer that saw these Gram sums.
pub(super) fn factor(gram: &[f64], k: usize) -> Vec<f64> {
    factor_of_inverse(damped(gram, k), k).expect("a damped Gram matrix is positive definite")
}

/// Codes of `values` `[N, K]`, which the format is known to take; `factor` `[K, K]` is `U`.
pub(super) fn gptq(
    mut values: Vec<f64>,
    shape: [usize; 2],
    format: &BlockFormat,
    factor: &[f64],
) -> Encoded {
    let [n, k] = shape;
    let counts = format.block.counts(shape).expect("the caller has encoded with this format");
    let tensor_scale = format.tensor_scale(&values);
    let scale = tensor_scale.unwrap_or(1.0);
    // Where all rows share a grid, they share one.
    let shared = (counts[0] != n).then(|| best_grid(&values, format, scale));
    let columns = LayerColumns {
        format,
        factor: ArrayView2::from_shape((k, k), factor).expect("a factor is square"),
        group: k.checked_div(counts[1]).unwrap_or(1).max(1),
        shared,
        scale,
    };
    let mut grids = vec![Grid { scale: 1.0, zero: 0.0 }; n * counts[1]];
    let rows = share(n);
    thread::scope(|scope| {
        let of_grids = grids.chunks_mut((rows * counts[1]).max(1));
        for (values, grids) in values.chunks_mut((rows * k).max(1)).zip(of_grids) {
            scope.spawn(|| {
                let tiles = values.chunks_mut(ROWS * k).zip(grids.chunks_mut(ROWS * counts[1]));
                tiles.for_each(|(tile, grids)| columns.round(tile, grids));
            });
        }
    });
    grids.truncate(counts[0] * counts[1]);
    format.assemble(&values, &grids, shape, tensor_scale)
}

/// Data that the rows of a layer share.
struct LayerColumns<'a> {
    format: &'a BlockFormat,
    factor: ArrayView2<'a, f64>,
    /// Columns that share a grid.
    group: usize,
    /// The grid of all rows, where there is one.
    shared: Option<Grid>,
    /// The scale of the matrix.
    scale: f64,
}

impl LayerColumns<'_> {
    /// Replaces these rows by codes, and fills in their grids.
    fn round(&self, tile: &mut [f64], grids: &mut [Grid]) {
        let k = self.factor.nrows();
        let rows = tile.len() / k;
        let groups = grids.len() / rows;
        let mut errors = vec![0.0; rows * COLUMNS];
        let mut from = 0;
        while from < k {
            let to = self.end(from);
            let width = to - from;
            let each =
                tile.chunks_mut(k).zip(grids.chunks_mut(groups)).zip(errors.chunks_mut(width));
            each.for_each(|((row, grids), errors)| self.round_part(row, grids, (from, errors)));
            let errors = ArrayView2::from_shape((rows, width), &errors[..rows * width]);
            let errors = errors.expect("an error for each column");
            let mut tile = ArrayViewMut2::from_shape((rows, k), &mut *tile).expect("whole rows");
            let behind = self.factor.slice(s![from..to, to..]);
            general_mat_mul(-1.0, &errors, &behind, 1.0, &mut tile.slice_mut(s![.., to..]));
            from = to;
        }
    }

    /// The end of the columns that are rounded together from `from` on. They are whole groups, or a
    /// part of one, so that a group is up to date when its grid is chosen.
    fn end(&self, from: usize) -> usize {
        let end = match self.group < COLUMNS {
            true => from + COLUMNS / self.group * self.group,
            false => (from + COLUMNS).min((from / self.group + 1) * self.group),
        };
        end.min(self.factor.nrows())
    }

    /// The same for some columns of a row. Their errors, which later columns must compensate, are
    /// left in `errors`.
    fn round_part(&self, row: &mut [f64], grids: &mut [Grid], (from, errors): (usize, &mut [f64])) {
        let to = from + errors.len();
        for column in from..to {
            let group = column / self.group;
            if column % self.group == 0 {
                let whole = &row[column..(column + self.group).min(row.len())];
                grids[group] =
                    self.shared.unwrap_or_else(|| best_grid(whole, self.format, self.scale));
            }
            let (grid, x) = (grids[group], row[column]);
            let code = self.format.code(x, grid);
            let of_factor = self.factor.row(column);
            let error = (x - self.format.value(code, grid)) / of_factor[column];
            let factors = of_factor.slice(s![column + 1..to]);
            let behind = row[column + 1..to].iter_mut().zip(factors);
            behind.for_each(|(x, u)| *x -= error * u);
            row[column] = code;
            errors[column - from] = error;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{DType, Granularity};

    /// Algorithm 1 as the paper has it: a row and a column at a time.
    fn by_columns(
        values: &[f64],
        shape: [usize; 2],
        format: &BlockFormat,
        factor: &[f64],
    ) -> Encoded {
        let [n, k] = shape;
        let counts = format.block.counts(shape).unwrap();
        let group = k / counts[1];
        let shared = (counts[0] != n).then(|| best_grid(values, format, 1.0));
        let (mut w, mut grids) = (values.to_vec(), Vec::new());
        for row in w.chunks_mut(k) {
            for column in 0..k {
                if column % group == 0 {
                    let whole = &row[column..column + group];
                    grids.push(shared.unwrap_or_else(|| best_grid(whole, format, 1.0)));
                }
                let grid = grids[grids.len() - 1];
                let code = format.code(row[column], grid);
                let u = &factor[column * k..(column + 1) * k];
                let error = (row[column] - format.value(code, grid)) / u[column];
                (column + 1..k).for_each(|behind| row[behind] -= error * u[behind]);
                row[column] = code;
            }
        }
        grids.truncate(counts[0] * counts[1]);
        format.assemble(&w, &grids, shape, None)
    }

    #[test]
    fn columns_in_blocks_give_the_codes_of_columns_one_by_one() {
        let random = |i: usize| ((i * 7919 + i * i * 31) % 2003) as f64 / 1001.0 - 1.0;
        // More rows than a tile; groups that divide a block of columns, do not, span several, and
        // all of a row.
        for (n, k, block) in [
            (300, 256, Granularity::Group(32)),
            (3, 480, Granularity::Group(48)),
            (2, 768, Granularity::Group(384)),
            (5, 300, Granularity::Channel),
            (7, 130, Granularity::Tensor),
        ] {
            let gram = ndarray::Array2::from_shape_fn((2 * k, k), |(i, j)| random(i * k + j + 1));
            let gram = gram.t().dot(&gram);
            let factor = factor(gram.as_standard_layout().as_slice().unwrap(), k);
            let values: Vec<f64> = (0..n * k).map(|i| random(i + 77)).collect();
            for format in [
                BlockFormat::plain(DType::I4, block),
                BlockFormat::plain(DType::U8, block).asymmetric(),
            ] {
                let expected = by_columns(&values, [n, k], &format, &factor);
                assert_eq!(gptq(values.clone(), [n, k], &format, &factor), expected, "{block:?}");
            }
        }
    }
}
