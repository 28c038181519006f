//! Order statistics: the median, its distribution-free interval, quantiles and tails.

/// A non-empty ascending sequence of finite numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Sorted(Vec<f64>);

/// A two-sided interval and its actual confidence. For order statistics this is not exactly the
/// requested one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end, in the unit of the samples.
    pub low: f64,
    /// Upper end, in the unit of the samples.
    pub high: f64,
    /// Confidence, in `(0, 1)`.
    pub confidence: f64,
}

impl Interval {
    /// Half of the interval's width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Whether `value` lies in the interval, its ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The confidence that every interval of this crate aims at.
pub const CONFIDENCE: f64 = 0.95;

impl Sorted {
    /// Sorts a copy of `values`; `None` if there are none, or one is not finite.
    pub fn new(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self(sorted))
    }

    /// The values, ascending.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// How many values there are; at least one.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// The middle value, or the mean of the two middle ones.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The quantile `q` in `[0, 1]`, interpolated linearly between order statistics (Hyndman and
    /// Fan's type 7, the default of R and NumPy).
    pub fn quantile(&self, q: f64) -> f64 {
        assert!((0.0..=1.0).contains(&q), "a quantile lies between 0 and 1, not at {q}");
        let position = q * (self.0.len() - 1) as f64;
        let below = position.floor() as usize;
        let above = position.ceil() as usize;
        self.0[below] + (self.0[above] - self.0[below]) * (position - below as f64)
    }

    /// A high quantile, if there are enough samples to say anything about it. Enough means
    /// `q^n <= 0.05`: with fewer, not even the largest sample bounds it with 95 % confidence. p90
    /// needs 29 samples, p95 59, p99 299.
    pub fn tail(&self, q: f64) -> Option<f64> {
        let bounded = q.powi(i32::try_from(self.0.len()).unwrap_or(i32::MAX)) <= 1.0 - CONFIDENCE;
        bounded.then(|| self.quantile(q))
    }

    /// The 95 % interval of the median from order statistics. It assumes only that the samples are
    /// independent and of one distribution. The number of samples below the true median is then
    /// binomial(n, 1/2). The k-th smallest and the k-th largest sample thus enclose the median with
    /// an exactly known confidence. For n = 20, the 6th and the 15th do so with 95.9 %. The result
    /// is `None` below six samples, where no such pair reaches 95 %.
    pub fn median_interval(&self) -> Option<Interval> {
        let n = self.0.len();
        let (rank, confidence) = median_ranks(n)?;
        Some(Interval { low: self.0[rank], high: self.0[n - 1 - rank], confidence })
    }
}

/// The largest zero-based `rank` whose symmetric pair of order statistics covers the median with at
/// least 95 %, and that coverage. Terms are summed in logarithms, since 2^-n underflows beyond n
/// = 1074.
fn median_ranks(n: usize) -> Option<(usize, f64)> {
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut best = None;
    for rank in 0..n.div_ceil(2) {
        below += ln_term.exp();
        let confidence = 1.0 - 2.0 * below;
        if confidence < CONFIDENCE {
            break;
        }
        best = Some((rank, confidence));
        ln_term += ((n - rank) as f64 / (rank + 1) as f64).ln();
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn twenty_samples_use_the_sixth_and_the_fifteenth() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        let interval = Sorted::new(&values).unwrap().median_interval().unwrap();
        assert_eq!((interval.low, interval.high), (6.0, 15.0));
        assert!((interval.confidence - 0.958_610_534_667_968_8).abs() < 1e-12);
    }

    #[test]
    fn six_samples_are_the_fewest_with_an_interval() {
        assert!(median_ranks(5).is_none());
        assert_eq!(median_ranks(6).unwrap().0, 0);
        let (rank, confidence) = median_ranks(5000).unwrap();
        assert!((2400..2500).contains(&rank) && (0.95..0.96).contains(&confidence));
    }

    #[test]
    fn tails_need_the_published_numbers_of_samples() {
        let of = |n: usize| Sorted::new(&vec![1.0; n]).unwrap();
        for (q, enough) in [(0.90, 29), (0.95, 59), (0.99, 299)] {
            assert!(of(enough - 1).tail(q).is_none(), "p{q} from {} samples", enough - 1);
            assert!(of(enough).tail(q).is_some(), "p{q} from {enough} samples");
        }
    }

    #[test]
    fn nothing_and_nonsense_have_no_median() {
        assert!(Sorted::new(&[]).is_none());
        assert!(Sorted::new(&[1.0, f64::NAN]).is_none());
        assert!(Sorted::new(&[1.0, f64::INFINITY]).is_none());
    }

    /// Checks the promise of the interval on a distribution whose true median is known. It is as
    /// skewed as timings are: exponential noise with occasional eightfold spikes.
    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_says() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sessions = 4000;
        let covered = (0..sessions)
            .filter(|_| {
                let draw = |_| {
                    let time = 1.0 - rng.f64().ln() * 0.1;
                    if rng.f64() < 0.05 { time * 8.0 } else { time }
                };
                let values: Vec<f64> = (0..20).map(draw).collect();
                // P(time <= m) = 0.95 (1 - exp(-(m - 1) / 0.1)) is one half at this m.
                let median = 1.0 - 0.1 * (1.0 - 0.5 / 0.95_f64).ln();
                Sorted::new(&values).unwrap().median_interval().unwrap().contains(median)
            })
            .count();
        let share = covered as f64 / f64::from(sessions);
        assert!((0.948..0.969).contains(&share), "covered {share}, should be 0.959");
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_counting(values in prop::collection::vec(-1e6..1e6_f64, 1..60)) {
            let sorted = Sorted::new(&values).unwrap();
            let below = values.iter().filter(|&&v| v < sorted.median()).count();
            let above = values.iter().filter(|&&v| v > sorted.median()).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
            prop_assert!(sorted.quantile(0.25) <= sorted.median());
            prop_assert!(sorted.median() <= sorted.quantile(0.75));
            prop_assert_eq!(sorted.quantile(0.0), sorted.min());
            prop_assert_eq!(sorted.quantile(1.0), sorted.max());
        }

        #[test]
        fn ranks_agree_with_the_binomial_summed_by_hand(n in 6_usize..60) {
            let factor = |i: usize| (n - i) as f64 / (i + 1) as f64;
            let choose = |k: usize| (0..k).map(factor).product::<f64>();
            let tail = |k: usize| (0..=k).map(choose).sum::<f64>() / 2_f64.powi(n as i32);
            let (rank, confidence) = median_ranks(n).unwrap();
            prop_assert!((confidence - (1.0 - 2.0 * tail(rank))).abs() < 1e-9);
            prop_assert!(1.0 - 2.0 * tail(rank + 1) < 0.95);
        }
    }
}
