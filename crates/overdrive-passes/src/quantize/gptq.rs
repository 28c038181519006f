//! GPTQ rounds the columns of a weight one by one. The columns that follow make up for the error of
//! each.
//!
//! Let `H = X Xᵀ` over calibration rows and `Uᵀ U = H⁻¹`. Rounding column k of a row with error e
//! changes the columns after it by `-e U[k, k..] / U[k, k]`, which is the best linear answer.
//! Columns with the largest inputs come first, while many columns are left to make up for their
//! errors. Groups stay those of the stored order, so that nothing is reordered at run time. Their
//! grids are therefore chosen before the first column is rounded. A grid is the one of a few around
//! the largest magnitude whose errors, weighted by the diagonal of H, cost least.
//!
//! GPTAQ is the same towards the outputs of the float model on its own inputs `X_f`. The codes
//! before the layer have moved X away from these. It minimises `|Q X - W X_f|²`. Let the drift be
//! `D = (X_f - X) Xᵀ`, so that `W X_f Xᵀ = W (H + D)`. The best Q before rounding is then `W* = W +
//! W D H⁻¹`, and
//!
//! `|Q X - W X_f|² = tr (Q - W*) H (Q - W*)ᵀ + a constant`,
//!
//! which GPTQ of `W*` minimises. No other loop over columns is needed. With a damped H, W* is the
//! optimum of the objective and of `damping |W* - W|²` together.
//!
//! Sources: Frantar et al., "GPTQ", arXiv:2210.17323 (algorithm 1, damping of 1 %). The order and
//! the groups are `act-order` and `static-groups` of the authors' code. Li et al., "GPTAQ",
//! arXiv:2504.02692, for the objective; the authors share the difference out column by column.

use super::linear_algebra::{add_product, damped, factor_of_inverse, share};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, s};
use overdrive_ir::{BlockFormat, BlockIndex, Encoded, Grid};
use std::thread;

/// Columns whose errors reach those behind them in one product (section 3.3, "lazy batch-updates").
const COLUMNS: usize = 128;
/// Rows that are rounded together: enough to reuse a factor that is larger than caches.
const ROWS: usize = 256;

/// Statistics of a layer's inputs, by column.
pub(super) struct ColumnInputs {
    /// Columns as they are rounded, the largest inputs first.
    order: Vec<usize>,
    /// `U` `[K, K]` of the columns in that order, upper triangular.
    factor: Vec<f64>,
    /// The cost of a squared error in each column: the diagonal of `H`.
    costs: Vec<f64>,
    /// `D H⁻¹` `[K, K]`, if rows are to make up for inputs that have drifted.
    shift: Option<Array2<f64>>,
}

impl ColumnInputs {
    /// The statistics of a layer of `k` inputs that saw these Gram sums.
    pub(super) fn of(gram: &[f64], k: usize) -> Self {
        let h = damped(gram, k);
        let costs: Vec<f64> = (0..k).map(|i| h[i * k + i]).collect();
        let mut order: Vec<usize> = (0..k).collect();
        order.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
        let ordered = order.iter().flat_map(|&i| order.iter().map(move |&j| (i, j)));
        let ordered = ordered.map(|(i, j)| h[i * k + j]).collect();
        let factor =
            factor_of_inverse(ordered, k).expect("a damped Gram matrix is positive definite");
        Self { order, factor, costs, shift: None }
    }

    /// The same for rows that make up for this drift `D` `[K, K]` of their inputs.
    pub(super) fn drifted(mut self, drift: &[f64]) -> Self {
        let k = self.order.len();
        let drift = ArrayView2::from_shape((k, k), drift).expect("a drift is square");
        let drift = drift.select(Axis(1), &self.order);
        let factor = ArrayView2::from_shape((k, k), &self.factor).expect("a factor is square");
        let [mut half, mut whole, mut shift] = [(); 3].map(|()| Array2::zeros((k, k)));
        add_product(1.0, (drift.view(), factor.t()), half.view_mut());
        add_product(1.0, (half.view(), factor), whole.view_mut());
        for (column, &place) in whole.columns().into_iter().zip(&self.order) {
            shift.column_mut(place).assign(&column);
        }
        self.shift = Some(shift);
        self
    }

    /// Moves rows of K to where they make up best for the drift of their inputs.
    fn shift(&self, rows: &mut [f64]) {
        let Some(shift) = &self.shift else { return };
        let k = self.order.len();
        let before = rows.to_vec();
        let shape = (rows.len() / k.max(1), k);
        let before = ArrayView2::from_shape(shape, &before).expect("whole rows");
        let rows = ArrayViewMut2::from_shape(shape, rows).expect("whole rows");
        add_product(1.0, (before, shift.view()), rows);
    }
}

/// Codes of `values` `[N, K]`, which the format is known to take, and the values that were rounded.
/// Each makes up for errors of columns before it. As many rows have the same inputs as there are
/// rows for each of `inputs`: those of a group of channels, or all.
pub(super) fn gptq(
    mut values: Vec<f64>,
    shape: [usize; 2],
    format: &BlockFormat,
    inputs: &[ColumnInputs],
) -> (Encoded, Vec<f64>) {
    let [n, k] = shape;
    let counts = format.block.counts(shape).expect("the caller has encoded with this format");
    let alike = n / inputs.len().max(1);
    for (rows, inputs) in values.chunks_mut((alike * k).max(1)).zip(inputs) {
        inputs.shift(rows);
    }
    let tensor_scale = format.tensor_scale(&values);
    let scale = tensor_scale.unwrap_or(1.0);
    let costs = || -> Vec<f64> {
        let of_rows = |inputs: &ColumnInputs| inputs.costs.repeat(alike);
        inputs.iter().flat_map(of_rows).collect()
    };
    // If rows have no grids of their own, all of them share one.
    let shared = (counts[0] != n).then(|| best_grid(&values, &costs(), format, scale));
    let mut grids = vec![Grid { scale: 1.0, zero: 0.0 }; n * counts[1]];
    let of_grids = grids.chunks_mut((alike * counts[1]).max(1));
    let of_values = values.chunks_mut((alike * k).max(1));
    for ((values, grids), inputs) in of_values.zip(of_grids).zip(inputs) {
        let columns = LayerColumns {
            format,
            inputs,
            factor: ArrayView2::from_shape((k, k), &inputs.factor).expect("a factor is square"),
            group: k.checked_div(counts[1]).unwrap_or(1).max(1),
            shared,
            scale,
        };
        columns.round_all(values, grids);
    }
    grids.truncate(counts[0] * counts[1]);
    let index = BlockIndex::new(shape, counts);
    let code = |(i, &x): (usize, &f64)| format.code(x, grids[index.at(i)]);
    let codes: Vec<f64> = values.iter().enumerate().map(code).collect();
    (format.assemble(&codes, &grids, shape, tensor_scale), values)
}

/// Data that the rows of a layer share.
struct LayerColumns<'a> {
    format: &'a BlockFormat,
    inputs: &'a ColumnInputs,
    /// That of the inputs, as a matrix.
    factor: ArrayView2<'a, f64>,
    /// Columns that share a grid.
    group: usize,
    /// The grid of all rows, where there is one.
    shared: Option<Grid>,
    /// The scale of the matrix.
    scale: f64,
}

impl LayerColumns<'_> {
    /// Replaces rows by the values to round and fills in their grids, with all cores.
    fn round_all(&self, values: &mut [f64], grids: &mut [Grid]) {
        let k = self.factor.nrows();
        let rows = share(values.len() / k.max(1));
        let groups = grids.len() * k / values.len().max(1);
        thread::scope(|scope| {
            let of_grids = grids.chunks_mut((rows * groups).max(1));
            for (values, grids) in values.chunks_mut((rows * k).max(1)).zip(of_grids) {
                scope.spawn(|| {
                    let tiles = values.chunks_mut(ROWS * k).zip(grids.chunks_mut(ROWS * groups));
                    tiles.for_each(|(tile, grids)| self.round(tile, grids));
                });
            }
        });
    }

    /// Replaces these rows by the values to round, and fills in their grids.
    fn round(&self, tile: &mut [f64], grids: &mut [Grid]) {
        let k = self.factor.nrows();
        let rows = tile.len() / k;
        let groups = grids.len() / rows;
        let order = &self.inputs.order;
        let mut ordered = Vec::with_capacity(tile.len());
        for (row, grids) in tile.chunks(k).zip(grids.chunks_mut(groups)) {
            self.choose(row, grids);
            ordered.extend(order.iter().map(|&column| row[column]));
        }
        let mut errors = vec![0.0; rows * COLUMNS];
        for from in (0..k).step_by(COLUMNS) {
            let to = (from + COLUMNS).min(k);
            let width = to - from;
            let each =
                ordered.chunks_mut(k).zip(grids.chunks(groups)).zip(errors.chunks_mut(width));
            each.for_each(|((row, grids), errors)| self.round_part(row, grids, (from, errors)));
            let errors = ArrayView2::from_shape((rows, width), &errors[..rows * width]);
            let errors = errors.expect("an error for each column");
            let mut left = ArrayViewMut2::from_shape((rows, k), &mut ordered).expect("whole rows");
            let behind = self.factor.slice(s![from..to, to..]);
            general_mat_mul(-1.0, &errors, &behind, 1.0, &mut left.slice_mut(s![.., to..]));
        }
        for (row, moved) in tile.chunks_mut(k).zip(ordered.chunks(k)) {
            order.iter().zip(moved).for_each(|(&column, &x)| row[column] = x);
        }
    }

    /// The grid of each group of a row.
    fn choose(&self, row: &[f64], grids: &mut [Grid]) {
        let groups = row.chunks(self.group).zip(self.inputs.costs.chunks(self.group));
        for ((values, costs), grid) in groups.zip(grids) {
            *grid =
                self.shared.unwrap_or_else(|| best_grid(values, costs, self.format, self.scale));
        }
    }

    /// Rounds some columns of a row, in their order, and moves the others of these. The effect on
    /// the columns behind is left in `errors`.
    fn round_part(&self, row: &mut [f64], grids: &[Grid], (from, errors): (usize, &mut [f64])) {
        let to = from + errors.len();
        for column in from..to {
            let (grid, x) = (grids[self.inputs.order[column] / self.group], row[column]);
            let code = self.format.code(x, grid);
            let of_factor = self.factor.row(column);
            let error = (x - self.format.value(code, grid)) / of_factor[column];
            let factors = of_factor.slice(s![column + 1..to]);
            let behind = row[column + 1..to].iter_mut().zip(factors);
            behind.for_each(|(x, u)| *x -= error * u);
            errors[column - from] = error;
        }
    }
}

/// Shares of the range that are tried.
const SHARES: [f64; 9] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6];

/// The grid of these values whose squared errors cost least; `costs` repeat after their last.
pub(super) fn best_grid(
    values: &[f64],
    costs: &[f64],
    format: &BlockFormat,
    tensor_scale: f64,
) -> Grid {
    let ends = values.iter().fold([0.0f64; 2], |[low, high], &x| [low.min(x), high.max(x)]);
    let error = |grid: &Grid| -> f64 {
        let errors = values.iter().map(|&x| x - format.value(format.code(x, *grid), *grid));
        errors.zip(costs.iter().cycle()).map(|(error, cost)| cost * error * error).sum()
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

    /// The same as the paper has it: a row and a column at a time.
    fn by_columns(
        values: &[f64],
        shape: [usize; 2],
        format: &BlockFormat,
        inputs: &ColumnInputs,
    ) -> Encoded {
        let [n, k] = shape;
        let counts = format.block.counts(shape).unwrap();
        let group = k / counts[1];
        let shared = (counts[0] != n).then(|| best_grid(values, &inputs.costs, format, 1.0));
        let (mut w, mut grids) = (values.to_vec(), Vec::new());
        for row in w.chunks_mut(k) {
            let first = grids.len();
            for group in (0..k).collect::<Vec<_>>().chunks(group) {
                let whole: Vec<f64> = group.iter().map(|&column| row[column]).collect();
                let costs: Vec<f64> = group.iter().map(|&column| inputs.costs[column]).collect();
                grids.push(shared.unwrap_or_else(|| best_grid(&whole, &costs, format, 1.0)));
            }
            for (at, &column) in inputs.order.iter().enumerate() {
                let grid = grids[first + column / group];
                let code = format.code(row[column], grid);
                let u = &inputs.factor[at * k..(at + 1) * k];
                let error = (row[column] - format.value(code, grid)) / u[at];
                let behind = inputs.order.iter().zip(u).skip(at + 1);
                behind.for_each(|(&behind, u)| row[behind] -= error * u);
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
            let inputs = ColumnInputs::of(gram.as_standard_layout().as_slice().unwrap(), k);
            assert!(inputs.order.windows(2).all(|w| inputs.costs[w[0]] >= inputs.costs[w[1]]));
            assert!(!inputs.order.is_sorted(), "an order that is not that of the columns");
            let values: Vec<f64> = (0..n * k).map(|i| random(i + 77)).collect();
            for format in [
                BlockFormat::plain(DType::I4, block),
                BlockFormat::plain(DType::U8, block).asymmetric(),
            ] {
                let expected = by_columns(&values, [n, k], &format, &inputs);
                let (found, _) =
                    gptq(values.clone(), [n, k], &format, std::slice::from_ref(&inputs));
                assert_eq!(found, expected, "{block:?}");
            }
        }
    }

    #[test]
    fn groups_of_rows_have_the_codes_of_layers_of_their_own() {
        let random = |i: usize| ((i * 7919 + i * i * 31) % 2003) as f64 / 1001.0 - 1.0;
        let (rows, k) = (3, 18);
        let inputs = [5, 900].map(|seed| {
            let seen =
                ndarray::Array2::from_shape_fn((2 * k, k), |(i, j)| random(i * k + j + seed));
            let gram = seen.t().dot(&seen);
            ColumnInputs::of(gram.as_standard_layout().as_slice().unwrap(), k)
        });
        let values: Vec<f64> = (0..2 * rows * k).map(|i| random(i + 77)).collect();
        let format = BlockFormat::plain(DType::I4, Granularity::Group(6)).asymmetric();
        let (both, _) = gptq(values.clone(), [2 * rows, k], &format, &inputs);
        let apart = values.chunks(rows * k).zip(inputs.chunks(1));
        let apart = apart.map(|(values, inputs)| gptq(values.to_vec(), [rows, k], &format, inputs));
        let expected: Vec<f64> = apart.flat_map(|(encoded, _)| encoded.decode()).collect();
        assert_eq!(both.decode(), expected);
    }

    #[test]
    fn drifted_inputs_are_made_up_for() {
        let random = |i: usize| ((i * 7919 + i * i * 31) % 2003) as f64 / 1001.0 - 1.0;
        let (n, k, rows) = (6, 48, 160);
        let matrix = |sizes: (usize, usize), seed: usize| {
            Array2::from_shape_fn(sizes, |(i, j)| random(i * sizes.1 + j + seed))
        };
        // Rows of X are samples here. The inputs have moved by a tenth, along each other too.
        let float = matrix((rows, k), 1);
        let seen =
            &float + 0.1 * float.dot(&matrix((k, k), 9000)) + 0.1 * matrix((rows, k), 40_000);
        let weight = matrix((n, k), 700);
        let flat = |m: Array2<f64>| m.as_standard_layout().iter().copied().collect::<Vec<_>>();
        let gram = flat(seen.t().dot(&seen));
        let drift = flat((&float - &seen).t().dot(&seen));
        let format = BlockFormat::plain(DType::I4, Granularity::Group(16));
        let round = |inputs: ColumnInputs| gptq(flat(weight.clone()), [n, k], &format, &[inputs]).0;
        let plain = round(ColumnInputs::of(&gram, k));
        assert_eq!(round(ColumnInputs::of(&gram, k).drifted(&vec![0.0; k * k])), plain);

        let objective = |rows: &[f64]| {
            let rows = ArrayView2::from_shape((n, k), rows).unwrap();
            let error = seen.dot(&rows.t()) - float.dot(&weight.t());
            error.iter().map(|e| e * e).sum::<f64>()
        };
        let drifted = ColumnInputs::of(&gram, k).drifted(&drift);
        let mut best = flat(weight.clone());
        drifted.shift(&mut best);
        let found = round(drifted);
        let [plain, found] = [plain, found].map(|encoded| objective(&encoded.decode()));
        assert!(found < 0.8 * plain, "errs by {found}, GPTQ by {plain}");

        // The gradient of `|W* X - W X_f|² + damping |W* - W|²` is 0 where rows were moved to.
        let damping = damped(&gram, k)[0] - gram[0];
        let best = Array2::from_shape_vec((n, k), best).unwrap();
        let error = seen.dot(&best.t()) - float.dot(&weight.t());
        let slope = error.t().dot(&seen) + damping * (&best - &weight);
        let worst = slope.iter().fold(0.0f64, |worst, x| worst.max(x.abs()));
        assert!(worst < 1e-8 * gram[0], "a slope of {worst}");
    }
}
