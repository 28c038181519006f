//! Change points by E-divisive. Source: Matteson and James, "A Nonparametric Approach for Multiple
//! Change Point Analysis of Multivariate Data" (2014), as MongoDB and Apache Otava use it on
//! benchmark histories.
//!
//! The energy distance between two samples is 0 only if their distributions agree, and needs no
//! normal noise. The best split of a segment is the pair of a place and an end that maximises this
//! distance. A permutation of the segments' own values shows how large it would be by chance.
//! Splits are taken one after the other until one is no longer significant. The seed makes the same
//! history always give the same answer.

/// Fewest points on either side of a change: of fewer, no distribution is known.
const SHORTEST: usize = 4;
/// Permutations per split; with the observed one they give p in steps of 1/200.
const PERMUTATIONS: usize = 199;
/// A split is a change point at this level. With four points on either side there are 35 different
/// splits. So it takes about ten points to show a change.
const LEVEL: f64 = 0.01;

/// A place where a series changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    /// Index of the first value after the change.
    pub index: usize,
    /// Share of permutations with a split as good.
    pub p: f64,
}

/// The points at which `values` changed, ascending.
pub fn change_points(values: &[f64], seed: u64) -> Vec<ChangePoint> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut found: Vec<ChangePoint> = Vec::new();
    loop {
        let mut bounds: Vec<usize> = found.iter().map(|change| change.index).collect();
        bounds.extend([0, values.len()]);
        bounds.sort_unstable();
        let Some((index, statistic)) = best_split(values, &bounds) else { break };
        let mut shuffled = values.to_vec();
        let as_good = (0..PERMUTATIONS)
            .filter(|_| {
                for segment in bounds.windows(2) {
                    rng.shuffle(&mut shuffled[segment[0]..segment[1]]);
                }
                best_split(&shuffled, &bounds).is_some_and(|(_, by_chance)| by_chance >= statistic)
            })
            .count();
        let p = (as_good + 1) as f64 / (PERMUTATIONS + 1) as f64;
        if p > LEVEL {
            break;
        }
        found.push(ChangePoint { index, p });
    }
    found.sort_unstable_by_key(|change| change.index);
    found
}

/// The best split over all segments.
fn best_split(values: &[f64], bounds: &[usize]) -> Option<(usize, f64)> {
    let splits = bounds.windows(2).filter_map(|segment| {
        let (offset, statistic) = split(&values[segment[0]..segment[1]])?;
        Some((segment[0] + offset, statistic))
    });
    splits.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The split of one segment with the largest scaled energy distance, over every place and every end
/// of the right part. An end before the segment's own keeps a second change from hiding the first.
fn split(values: &[f64]) -> Option<(usize, f64)> {
    let n = values.len();
    if n < 2 * SHORTEST {
        return None;
    }
    let sums = Distances::of(values);
    let ends =
        (2 * SHORTEST..=n).flat_map(|end| (SHORTEST..=end - SHORTEST).map(move |at| (at, end)));
    ends.map(|(at, end)| (at, sums.energy(at, end))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Sums of `|x_i - x_j|` over `i < rows` and `j < columns`, so that the sum over any block takes
/// four look-ups.
struct Distances {
    sums: Vec<f64>,
    stride: usize,
}

impl Distances {
    fn of(values: &[f64]) -> Self {
        let stride = values.len() + 1;
        let mut sums = vec![0.0; stride * stride];
        for (i, x) in values.iter().enumerate() {
            let mut row = 0.0;
            for (j, y) in values.iter().enumerate() {
                row += (x - y).abs();
                sums[(i + 1) * stride + j + 1] = sums[i * stride + j + 1] + row;
            }
        }
        Self { sums, stride }
    }

    fn block(&self, rows: [usize; 2], columns: [usize; 2]) -> f64 {
        let at = |row: usize, column: usize| self.sums[row * self.stride + column];
        at(rows[1], columns[1]) - at(rows[0], columns[1]) - at(rows[1], columns[0])
            + at(rows[0], columns[0])
    }

    /// The energy distance between `0..at` and `at..end`, scaled by m n / (m + n) so that splits of
    /// different sizes compare.
    fn energy(&self, at: usize, end: usize) -> f64 {
        let (m, n) = (at as f64, (end - at) as f64);
        let between = self.block([0, at], [at, end]) / (m * n);
        let left = self.block([0, at], [0, at]) / (m * (m - 1.0));
        let right = self.block([at, end], [at, end]) / (n * (n - 1.0));
        m * n / (m + n) * (2.0 * between - left - right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(rng: &mut fastrand::Rng) -> f64 {
        // The sum of twelve uniform numbers is near enough to normal.
        (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
    }

    /// Values around these levels, each for so many points.
    fn stepped(seed: u64, levels: &[(f64, usize)]) -> Vec<f64> {
        let mut rng = fastrand::Rng::with_seed(seed);
        levels
            .iter()
            .flat_map(|&(level, count)| std::iter::repeat_n(level, count))
            .map(|level| level + 0.01 * noise(&mut rng))
            .collect()
    }

    fn places(values: &[f64]) -> Vec<usize> {
        change_points(values, 1).iter().map(|change| change.index).collect()
    }

    #[test]
    fn steps_are_found_where_they_are() {
        assert_eq!(places(&stepped(1, &[(1.0, 15), (1.07, 15)])), [15]);
        assert_eq!(places(&stepped(2, &[(1.0, 12), (1.10, 12), (0.95, 12)])), [12, 24]);
        let repaired =
            |seed: &u64| places(&stepped(*seed, &[(1.0, 20), (1.10, 8), (1.0, 20)])) == [20, 28];
        let found = (0..40).filter(repaired).count();
        assert!(found >= 36, "a step and its repair, and nothing else, in {found} of 40");
    }

    #[test]
    fn one_wild_value_is_no_change() {
        let mut values = stepped(4, &[(1.0, 30)]);
        values[17] = 8.0;
        assert!(places(&values).is_empty());
    }

    #[test]
    fn a_level_series_is_seldom_split() {
        let series = 300;
        let split =
            (0..series).filter(|seed| !places(&stepped(*seed, &[(1.0, 24)])).is_empty()).count();
        assert!(split as f64 <= 0.025 * series as f64, "{split} of {series}");
    }

    #[test]
    fn too_few_points_show_nothing() {
        for count in 0..4 {
            assert!(places(&stepped(5, &[(1.0, count), (9.0, count)])).is_empty());
        }
        assert_eq!(places(&stepped(5, &[(1.0, 6), (9.0, 6)])), [6]);
    }

    /// The look-ups against the definition summed by hand.
    #[test]
    fn the_energy_is_that_of_the_definition() {
        let values = stepped(6, &[(1.0, 5), (1.2, 7)]);
        let (left, right) = values[..10].split_at(4);
        let mean = |a: &[f64], b: &[f64], pairs: f64| {
            a.iter().flat_map(|x| b.iter().map(move |y| (x - y).abs())).sum::<f64>() / pairs
        };
        let by_hand = 24.0 / 10.0
            * (2.0 * mean(left, right, 24.0) - mean(left, left, 12.0) - mean(right, right, 30.0));
        assert!((Distances::of(&values).energy(4, 10) - by_hand).abs() < 1e-12);
    }
}
