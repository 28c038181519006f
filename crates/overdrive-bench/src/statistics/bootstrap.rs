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

/// `numerator.median() / denominator.median()`, with the 95 % percentile bootstrap interval from resampling both
/// sides independently. The same seed gives the same interval.
///
/// `None` if the denominator's median is not positive, or either side has fewer than six samples: below that
/// not even the medians themselves have an interval.
pub fn ratio_of_medians(numerator: &Sorted, denominator: &Sorted, seed: u64) -> Option<Ratio> {
    if denominator.min() <= 0.0 || numerator.median_interval().and(denominator.median_interval()).is_none() {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| resampled_median(numerator, &mut rng) / resampled_median(denominator, &mut rng))
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratios = Sorted::new(&ratios).expect("medians of finite positive samples have finite ratios");
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let interval =
        Interval { low: ratios.quantile(tail), high: ratios.quantile(1.0 - tail), confidence: CONFIDENCE };
    Some(Ratio { ratio: numerator.median() / denominator.median(), interval })
}

/// The median of as many draws with replacement as there are samples. Drawing ranks and counting them finds it
/// without sorting.
fn resampled_median(sorted: &Sorted, rng: &mut fastrand::Rng) -> f64 {
    let values = sorted.values();
    let mut drawn = vec![0_u32; values.len()];
    for _ in 0..values.len() {
        drawn[rng.usize(..values.len())] += 1;
    }
    let nth = |position: usize| {
        let mut seen = 0;
        let rank = drawn.iter().position(|&count| {
            seen += count as usize;
            seen > position
        });
        values[rank.expect("as many ranks were drawn as there are samples")]
    };
    let n = values.len();
    if n % 2 == 1 { nth(n / 2) } else { f64::midpoint(nth(n / 2 - 1), nth(n / 2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rng: &mut fastrand::Rng, n: usize, scale: f64) -> Sorted {
        let values: Vec<f64> = (0..n).map(|_| scale * (1.0 - 0.05 * rng.f64().ln())).collect();
        Sorted::new(&values).unwrap()
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
        assert!(seen[0].abs_diff(1000) < 120 && seen[1].abs_diff(2000) < 140 && seen[2].abs_diff(1000) < 120);
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
