//! How each element of an output answers to rounding: the scale that errors are measured by.
//!
//! Rows of an output differ in size, and their elements sum different numbers of terms. In causal
//! attention, for example, a row is the mean of as many values as it sees keys. One scale for all
//! would judge an element of a large row by the size of small ones.

/// How often the responses of outputs are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Draws {
    /// As often as the values of a row need, if each is a draw of its own.
    Few,
    /// Often enough for a row whose values all answer to one rounding, as those of a query that
    /// sees one key do.
    Many,
}

/// Responses of one output: what a random relative error of size 1, made wherever a number is
/// rounded, comes to there.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivity {
    /// Standard deviation of each element.
    elements: Vec<f64>,
    /// Root of the mean square of each row; `None` where too few values are behind it.
    rows: Vec<Option<f64>>,
    /// Elements of a row: the extent of the last axis.
    width: usize,
}

/// Independent values from which a row's own size is reliable.
const TELLING_ROW: f64 = 16.0;
/// Weight of a row's mean against the values of a column, in values.
const PRIOR: f64 = 16.0;
/// Times the standard deviation of an element's response: room for the extremes of millions of
/// elements.
const OF_ELEMENT: f64 = 8.0;
/// Times the root of the mean square of a row's responses.
const OF_ROW: f64 = 3.0;

impl Sensitivity {
    /// From the mean squares of the responses of `twins` draws, for an output of this shape.
    ///
    /// Few draws say little of an element alone. Its variance is therefore that of its row times a
    /// weight of its column, or its own response where that is larger. The weight compares the
    /// column with the others, over the rows of the same matrix (the last two axes).
    pub fn of_responses(squares: Vec<f64>, shape: &[usize], twins: usize) -> Self {
        let width = shape.last().copied().unwrap_or(1).max(1);
        let height = shape.len().checked_sub(2).map_or(1, |axis| shape[axis]).max(1);
        let squares: Vec<f64> =
            squares.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect();
        let (mut elements, mut rows) = (Vec::with_capacity(squares.len()), Vec::new());
        for matrix in squares.chunks(width * height) {
            let means: Vec<f64> = matrix
                .chunks(width)
                .map(|row| row.iter().sum::<f64>() / row.len() as f64)
                .collect();
            let mut columns = vec![0.0; width];
            for (row, mean) in matrix.chunks(width).zip(&means).filter(|(_, mean)| **mean > 0.0) {
                columns.iter_mut().zip(row).for_each(|(sum, square)| *sum += square / mean);
            }
            let count = means.iter().filter(|mean| **mean > 0.0).count() as f64;
            let draws = twins as f64;
            let columns: Vec<f64> =
                columns.iter().map(|sum| (draws * sum + PRIOR) / (draws * count + PRIOR)).collect();
            for (row, mean) in matrix.chunks(width).zip(&means) {
                let own = row.iter().zip(&columns);
                elements.extend(own.map(|(square, column)| square.max(mean * column).sqrt()));
                let sum: f64 = row.iter().sum();
                let independent = draws * sum * sum / row.iter().map(|x| x * x).sum::<f64>();
                rows.push((independent >= TELLING_ROW).then(|| mean.sqrt()));
            }
        }
        Self { elements, rows, width }
    }

    /// The largest error over elements and rows, as a share of what is allowed. `rounding` is the
    /// largest relative error of a rounding, `floor` the absolute error that every element may
    /// have. In addition to its scale, an element may be off by `4 rounding` of its value, and a
    /// row by `2 rounding` of its size (decision 0007).
    ///
    /// A row is held to less than its elements are: wrong by the same small amount everywhere, it
    /// would pass them all.
    pub(super) fn share(
        &self,
        found: &[f64],
        expected: &[f64],
        (rounding, floor): (f64, f64),
    ) -> f64 {
        let mut worst: f64 = 0.0;
        let mut take = |difference: f64, limit: f64| {
            let share = if difference == 0.0 { 0.0 } else { difference / limit };
            if share.is_nan() || share > worst {
                worst = share;
            }
        };
        let rows = found.chunks(self.width).zip(expected.chunks(self.width));
        for ((row, (found, expected)), scales) in
            self.rows.iter().zip(rows).zip(self.elements.chunks(self.width))
        {
            let (mut off, mut size) = (0.0, 0.0);
            for ((found, expected), scale) in found.iter().zip(expected).zip(scales) {
                let difference = if found == expected { 0.0 } else { (found - expected).abs() };
                take(difference, floor + rounding * (OF_ELEMENT * scale + 4.0 * expected.abs()));
                off += difference * difference;
                size += if difference == 0.0 && !expected.is_finite() {
                    0.0
                } else {
                    expected * expected
                };
            }
            if let Some(scale) = row {
                let count = expected.len() as f64;
                let limit = floor + rounding * (OF_ROW * scale + 2.0 * (size / count).sqrt());
                take((off / count).sqrt(), limit);
            }
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Responses of rows of sizes 1 and 1/100, of 64 elements each.
    fn two_rows() -> Sensitivity {
        let squares: Vec<f64> = (0..128).map(|i| if i < 64 { 1.0 } else { 1e-4 }).collect();
        Sensitivity::of_responses(squares, &[2, 64], 1)
    }

    #[test]
    fn each_row_has_its_own_scale() {
        let expected = [0.0; 128];
        let off = |at: usize, by: f64| {
            let mut found = expected;
            found[at] = by;
            two_rows().share(&found, &expected, (1e-3, 0.0))
        };
        assert!(off(3, 7e-3) < 1.0 && off(3, 9e-3) > 1.0);
        assert!(
            off(67, 7e-5) < 1.0 && off(67, 9e-5) > 1.0,
            "a small row is not judged by a large one"
        );
        assert!(off(3, f64::NAN).is_nan());
    }

    #[test]
    fn a_row_that_is_wrong_everywhere_is_wrong() {
        let expected = [0.0; 128];
        assert!(two_rows().share(&[2e-3; 128], &[0.0; 128], (1e-3, 1.0)) < 1.0);
        let found: Vec<f64> = (0..128).map(|i| if i < 64 { 4e-3 } else { 0.0 }).collect();
        assert!(two_rows().share(&found, &expected, (1e-3, 0.0)) > 1.0);
    }

    #[test]
    fn a_column_that_is_larger_everywhere_may_be_off_by_more() {
        let squares: Vec<f64> =
            (0..64 * 64).map(|i| if i % 64 == 5 { 100.0 } else { 1.0 }).collect();
        let found = Sensitivity::of_responses(squares, &[64, 64], 1);
        let (large, small) = (found.elements[5], found.elements[6]);
        assert!((8.0..12.0).contains(&large) && (0.5..2.0).contains(&small), "{large} {small}");
    }
}
