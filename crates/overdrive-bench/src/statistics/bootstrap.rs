//! The interval of a ratio of two medians, by the percentile bootstrap (Efron 1979), seeded.

use super::{Interval, Sorted, order::CONFIDENCE};

/// Resamplings per interval: the ends are then known to a few per cent of the interval's width.
const RESAMPLES: usize = 5_000;

/// A ratio of two medians with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median of the numerator over median of the denominator, as measured.
    pub ratio: f64,
    /// The bootstrap interval.
    pub interval: Interval,
}

/// `numerator.median() / denominator.median()`, with the 95 % percentile bootstrap interval from
/// resampling both sides independently. The same seed gives the same interval.
///
/// `None` if the denominator's median is not positive, or either side has fewer than six samples.
/// With fewer, not even the medians themselves have an interval.
pub fn ratio_of_medians(numerator: &Sorted, denominator: &Sorted, seed: u64) -> Option<Ratio> {
    if denominator.min() <= 0.0
        || numerator.median_interval().and(denominator.median_interval()).is_none()
    {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let [above, below] = [numerator, denominator].map(Medians::of);
    let mut ratios: Vec<f64> =
        (0..RESAMPLES).map(|_| above.draw(&mut rng) / below.draw(&mut rng)).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratios =
        Sorted::new(&ratios).expect("medians of finite positive samples have finite ratios");
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let interval = Interval {
        low: ratios.quantile(tail),
        high: ratios.quantile(1.0 - tail),
        confidence: CONFIDENCE,
    };
    Some(Ratio { ratio: numerator.median() / denominator.median(), interval })
}

/// The medians that resampling with replacement can give, with how often it gives them. One draw
/// from these is one resampling, at a hundredth of the cost; the distribution is exact (Maritz and
/// Jarrett 1978 for odd counts).
struct Medians {
    values: Vec<f64>,
    /// Up to and including each value; the last is 1 but for rounding.
    cumulative: Vec<f64>,
}

impl Medians {
    fn of(sorted: &Sorted) -> Self {
        let values = sorted.values();
        let n = values.len();
        let mut medians = Self { values: Vec::new(), cumulative: Vec::new() };
        let mut sum = 0.0;
        let mut add = |value: f64, probability: f64| {
            if probability > NEGLIGIBLE {
                sum += probability;
                medians.values.push(value);
                medians.cumulative.push(sum);
            }
        };
        // The draw at `middle`, of n sorted draws, has rank r or less when more than `middle` draws
        // do: a binomial tail.
        let middle = (n - 1) / 2;
        let at_most: Vec<f64> =
            (0..n).map(|rank| binomial_tail(n, middle + 1, (rank + 1) as f64 / n as f64)).collect();
        let alone = |rank: usize| at_most[rank] - if rank > 0 { at_most[rank - 1] } else { 0.0 };
        if n % 2 == 1 {
            (0..n).for_each(|rank| add(values[rank], alone(rank)));
            return medians;
        }
        // For an even count the median is the mean of two draws. The lower has rank i or less, and
        // the upper j > i or more, when half of the draws are on either side. That probability is a
        // product, so its differences are products too.
        let half = (n / 2) as f64;
        let root = 0.5 * ln_choose(n, n / 2);
        let lower = |rank: usize| (root + half * (rank as f64 / n as f64).ln()).exp();
        let upper = |rank: usize| (root + half * (1.0 - rank as f64 / n as f64).ln()).exp();
        for i in 0..n {
            if alone(i) <= NEGLIGIBLE {
                continue;
            }
            let mut apart = 0.0;
            for j in i + 1..n {
                let both = (lower(i + 1) - lower(i)) * (upper(j) - upper(j + 1));
                apart += both;
                add(f64::midpoint(values[i], values[j]), both);
                if upper(j) * lower(i + 1) <= NEGLIGIBLE {
                    break;
                }
            }
            add(values[i], alone(i) - apart);
        }
        medians
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> f64 {
        let place = rng.f64() * self.cumulative.last().expect("there is at least one sample");
        self.values[self.cumulative.partition_point(|&sum| sum <= place).min(self.values.len() - 1)]
    }
}

/// Probabilities that thousands of resamplings do not see.
const NEGLIGIBLE: f64 = 1e-9;

/// `P(X >= least)` of a binomial `X` of `n` trials, for `least` near the middle. Summed from the
/// side where terms only shrink, relative to the first of them, so that nothing underflows.
fn binomial_tail(n: usize, least: usize, probability: f64) -> f64 {
    if probability > 0.5 {
        return if probability >= 1.0 {
            1.0
        } else {
            1.0 - binomial_tail(n, n - least + 1, 1.0 - probability)
        };
    }
    let odds = probability / (1.0 - probability);
    let (mut term, mut relative) = (1.0, 0.0);
    for k in least..=n {
        relative += term;
        term *= (n - k) as f64 / (k + 1) as f64 * odds;
        if term < 1e-17 * relative {
            break;
        }
    }
    let ln_first = ln_choose(n, least)
        + least as f64 * probability.ln()
        + (n - least) as f64 * (1.0 - probability).ln();
    ln_first.exp() * relative
}

fn ln_choose(n: usize, k: usize) -> f64 {
    (0..k).map(|i| ((n - i) as f64 / (k - i) as f64).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rng: &mut fastrand::Rng, n: usize, scale: f64) -> Sorted {
        let values: Vec<f64> = (0..n).map(|_| scale * (1.0 - 0.05 * rng.f64().ln())).collect();
        Sorted::new(&values).unwrap()
    }

    /// The definition: as many draws with replacement as there are samples, and their median.
    fn resampled_median(sorted: &Sorted, rng: &mut fastrand::Rng) -> f64 {
        let drawn: Vec<f64> =
            (0..sorted.count()).map(|_| sorted.values()[rng.usize(..sorted.count())]).collect();
        Sorted::new(&drawn).unwrap().median()
    }

    #[test]
    fn medians_are_drawn_as_often_as_resampling_finds_them() {
        for n in [1, 2, 6, 7, 20, 33] {
            let sorted = series(&mut fastrand::Rng::with_seed(n as u64), n, 1.0);
            let medians = Medians::of(&sorted);
            assert!(
                (medians.cumulative.last().unwrap() - 1.0).abs() < 1e-6,
                "n {n}: {:?}",
                medians.cumulative.last()
            );
            let mut rng = fastrand::Rng::with_seed(5);
            let mut compare = |quantile: f64| {
                let mut both = [0, 1].map(|which| {
                    let draw = |_| {
                        if which == 0 {
                            medians.draw(&mut rng)
                        } else {
                            resampled_median(&sorted, &mut rng)
                        }
                    };
                    Sorted::new(&(0..20_000).map(draw).collect::<Vec<_>>())
                        .unwrap()
                        .quantile(quantile)
                });
                both.sort_by(f64::total_cmp);
                // Within the share of the range that 20,000 draws leave open.
                assert!(
                    both[1] - both[0] <= 0.04 * (sorted.max() - sorted.min()),
                    "n {n}, quantile {quantile}: {both:?}"
                );
            };
            [0.025, 0.25, 0.5, 0.9, 0.975].into_iter().for_each(&mut compare);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (a, b) = (series(&mut rng, 20, 2.0), series(&mut rng, 20, 1.0));
        assert_eq!(ratio_of_medians(&a, &b, 11), ratio_of_medians(&a, &b, 11));
        assert_ne!(ratio_of_medians(&a, &b, 11), ratio_of_medians(&a, &b, 12));
    }

    #[test]
    fn the_interval_covers_the_true_ratio() {
        let mut rng = fastrand::Rng::with_seed(4);
        let sessions = 400;
        let covered = (0..sessions)
            .filter(|&session| {
                let (a, b) = (series(&mut rng, 20, 3.0), series(&mut rng, 20, 2.0));
                ratio_of_medians(&a, &b, session).unwrap().interval.contains(1.5)
            })
            .count();
        // The percentile bootstrap of a median is known to be slightly conservative.
        assert!((372..=398).contains(&covered), "covered {covered} of {sessions}");
    }

    #[test]
    fn a_resampled_median_is_one_of_a_sorted_resample() {
        // One value can only resample to itself; two equal halves give either value or their mean.
        let mut rng = fastrand::Rng::with_seed(5);
        let two = Sorted::new(&[1.0, 3.0]).unwrap();
        let mut seen = [0_u32; 3];
        for _ in 0..4000 {
            seen[resampled_median(&two, &mut rng) as usize - 1] += 1;
        }
        // Both 1, one of each, both 3: one quarter, one half, one quarter.
        assert!(
            seen[0].abs_diff(1000) < 120
                && seen[1].abs_diff(2000) < 140
                && seen[2].abs_diff(1000) < 120
        );
    }

    #[test]
    fn too_few_samples_and_zero_times_have_no_ratio() {
        let few = Sorted::new(&[1.0; 5]).unwrap();
        let many = Sorted::new(&[1.0; 20]).unwrap();
        let zero = Sorted::new(&[0.0; 20]).unwrap();
        assert!(ratio_of_medians(&few, &many, 0).is_none());
        assert!(ratio_of_medians(&many, &few, 0).is_none());
        assert!(ratio_of_medians(&many, &zero, 0).is_none());
    }
}
