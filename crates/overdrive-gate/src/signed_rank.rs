//! Wilcoxon's signed-rank test, with the interval and the estimate that belong to it (Hodges and
//! Lehmann 1963).
//!
//! It asks only that, without an effect, each value is as likely to have the other sign. Its
//! distribution is then known exactly, whatever that of the values. One wild value moves it by a
//! rank, and two modes do not disturb it. The test, the estimate and the interval rest on the means
//! of all pairs of values (Walsh averages). Their median is the estimate, and the interval ends at
//! two of them. Ties and zeros count against a difference.

use std::sync::LazyLock;

use overdrive_bench::statistics::{normal_quantile_of_tail, normal_tail};

/// Up to so many values the distribution is exact; beyond, normal, whose tails are the heavier
/// ones.
const EXACT: usize = 100;

/// `P(W <= t)` by number of values and `t`, up to the middle of each distribution.
static TAILS: LazyLock<Vec<Vec<f64>>> = LazyLock::new(|| {
    let mut tables = vec![vec![1.0]];
    let mut chances = vec![1.0];
    for rank in 1..=EXACT {
        // The value of this rank is negative in half of all patterns, and then adds its rank.
        let mut next = vec![0.0; chances.len() + rank];
        for (sum, chance) in chances.iter().enumerate() {
            next[sum] += chance / 2.0;
            next[sum + rank] += chance / 2.0;
        }
        chances = next;
        let half = chances.iter().take(chances.len() / 2 + 1);
        tables.push(
            half.scan(0.0, |sum, chance| {
                *sum += chance;
                Some(*sum)
            })
            .collect(),
        );
    }
    tables
});

/// The chance that the ranks of negative values sum to at most `sum`, of `count` values without an
/// effect.
fn tail(count: usize, sum: usize) -> f64 {
    if let Some(table) = TAILS.get(count) {
        return table.get(sum).copied().unwrap_or(1.0);
    }
    let (mean, deviation) = moments(count);
    let z = (mean - sum as f64 - 0.5) / deviation;
    if z < 0.0 { 1.0 } else { normal_tail(z) }
}

/// Mean and standard deviation of the sum of ranks.
fn moments(count: usize) -> (f64, f64) {
    let n = count as f64;
    (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt())
}

/// The test of some values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SignedRank {
    /// Means of all pairs of values, each with itself too, ascending.
    means: Vec<f64>,
    count: usize,
}

impl SignedRank {
    /// The test of at least one value, all finite.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let pairs = values
            .iter()
            .enumerate()
            .flat_map(|(at, x)| values[at..].iter().map(move |y| (x + y) / 2.0));
        let mut means: Vec<f64> = pairs.collect();
        means.sort_unstable_by(f64::total_cmp);
        Some(Self { means, count: values.len() })
    }

    /// The estimate of the centre: the median of the means.
    pub(crate) fn centre(&self) -> f64 {
        let middle = self.means.len() / 2;
        if self.means.len().is_multiple_of(2) {
            (self.means[middle - 1] + self.means[middle]) / 2.0
        } else {
            self.means[middle]
        }
    }

    /// Two-sided p of a centre at 0.
    pub(crate) fn p(&self) -> f64 {
        let not_above = self.means.partition_point(|mean| *mean <= 0.0);
        let not_below = self.means.len() - self.means.partition_point(|mean| *mean < 0.0);
        (2.0 * tail(self.count, not_above.min(not_below))).min(1.0)
    }

    /// The interval that misses the centre with a chance of at most `alpha`; `None` of too few
    /// values.
    pub(crate) fn interval(&self, alpha: f64) -> Option<(f64, f64)> {
        let (mut within, mut beyond) = (0, self.means.len() / 2 + 1);
        if 2.0 * tail(self.count, 0) > alpha {
            return None;
        }
        while beyond - within > 1 {
            let middle = usize::midpoint(within, beyond);
            if 2.0 * tail(self.count, middle) <= alpha { within = middle } else { beyond = middle }
        }
        Some((self.means[within], self.means[self.means.len() - 1 - within]))
    }
}

/// How many standard errors the interval at `alpha` reaches to either side, of normal values.
pub(crate) fn reach(alpha: f64) -> f64 {
    normal_quantile_of_tail(alpha / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> SignedRank {
        SignedRank::of(values).unwrap()
    }

    /// Tabulated critical values (Wilcoxon and Wilcox 1964): at most this sum at 5 % and 1 %,
    /// two-sided.
    #[test]
    fn critical_sums_are_those_of_the_tables() {
        for (count, five, one) in
            [(8, 3, 0), (10, 8, 3), (15, 25, 15), (20, 52, 37), (50, 434, 373)]
        {
            for (alpha, sum) in [(0.05, five), (0.01, one)] {
                assert!(
                    2.0 * tail(count, sum) <= alpha && 2.0 * tail(count, sum + 1) > alpha,
                    "{count} {alpha}"
                );
            }
        }
        assert_eq!(tail(7, 0), 1.0 / 128.0);
    }

    /// The normal tail beyond the table is the heavier one, and near to the exact one where they
    /// meet.
    #[test]
    fn the_normal_tail_takes_over() {
        let (mean, deviation) = moments(EXACT);
        for z in [2.0, 3.0, 4.0] {
            let sum = (mean - z * deviation) as usize;
            let normal = normal_tail((mean - sum as f64 - 0.5) / deviation);
            let ratio = normal / tail(EXACT, sum);
            assert!((0.99..1.5).contains(&ratio), "{z}: {ratio}");
        }
        assert!(tail(EXACT + 1, 0) < 1e-15 && tail(EXACT + 1, 9000) == 1.0);
    }

    #[test]
    fn p_and_interval_say_the_same() {
        let mut rng = fastrand::Rng::with_seed(2);
        for count in [8, 10, 23, 150] {
            for _ in 0..50 {
                let values: Vec<f64> = (0..count).map(|_| rng.f64() - 0.35).collect();
                let test = of(&values);
                let (low, high) = test.interval(0.01).unwrap();
                assert_eq!(test.p() <= 0.01, low > 0.0 || high < 0.0, "{values:?}");
                assert!((low..=high).contains(&test.centre()));
            }
        }
    }

    #[test]
    fn ties_zeros_and_wild_values_do_not_decide() {
        assert_eq!(of(&[0.0; 12]).p(), 1.0);
        assert_eq!(of(&[0.0; 12]).interval(0.01), Some((0.0, 0.0)));
        assert_eq!(of(&[1.0, 1.0, -1.0, -1.0]).p(), 1.0);
        assert!(of(&[0.1; 12]).p() < 0.001);
        let mut wild = vec![0.01; 12];
        wild[5] = 40.0;
        assert_eq!(of(&wild).centre(), 0.01);
        assert_eq!(of(&[1.0; 7]).interval(0.01), None, "seven values have 128 patterns");
        assert_eq!(SignedRank::of(&[]), None);
        assert_eq!(SignedRank::of(&[f64::NAN]), None);
    }
}
