//! Exact tests by rearrangement, which assume no distribution, and Holm's correction for having made many.

/// Most pairs whose sign patterns are all gone through: 2^20 sums take some milliseconds.
const MOST_PAIRS: usize = 20;

/// Two-sided p of the sign-flip test: the share of all 2^n ways to choose the signs of `differences` whose sum
/// lies as far from 0 as the one observed. Exact if, without an effect, each difference is as likely to have the
/// other sign (Fisher 1935, section 21). At best `2 / 2^n`: five differences never reach 0.05.
///
/// 1.0 of no differences at all.
pub(crate) fn sign_flip_p(differences: &[f64]) -> f64 {
    let n = differences.len();
    assert!(n <= MOST_PAIRS, "{n} differences have too many sign patterns to go through");
    let observed = differences.iter().sum::<f64>().abs();
    // Sums that differ only by rounding count as equal.
    let scale: f64 = differences.iter().map(|difference| difference.abs()).sum();
    let reached = observed - 1e-12 * scale;
    let patterns = 1_u32 << n;
    let far = (0..patterns).filter(|pattern| {
        let signed = |(bit, d): (usize, &f64)| if pattern >> bit & 1 == 1 { -d } else { *d };
        differences.iter().enumerate().map(signed).sum::<f64>().abs() >= reached
    });
    far.count() as f64 / f64::from(patterns)
}

/// The fewest differences with which `tests` simultaneous sign-flip tests can each come below `alpha` after
/// Holm's correction.
pub(crate) fn fewest_differences(tests: usize, alpha: f64) -> usize {
    (1..=MOST_PAIRS).find(|&n| tests as f64 * 2.0 / f64::from(1_u32 << n) < alpha).unwrap_or(MOST_PAIRS)
}

/// Holm's adjusted p-values, in the order given: comparing each with `alpha` keeps the chance of even one false
/// rejection below `alpha` (Holm 1979).
pub(crate) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_unstable_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut reached: f64 = 0.0;
    for (rank, &at) in order.iter().enumerate() {
        reached = reached.max((p.len() - rank) as f64 * p[at]).min(1.0);
        adjusted[at] = reached;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_one_sign_is_the_rarest_pattern() {
        assert_eq!(sign_flip_p(&[1.0; 10]), 2.0 / 1024.0);
        assert_eq!(sign_flip_p(&[-0.1, -0.2, -0.3]), 0.25);
        assert_eq!(sign_flip_p(&[]), 1.0);
        assert_eq!(sign_flip_p(&[0.0; 6]), 1.0);
    }

    /// 1 + 2 + 3 - 4 = 2: sums of absolute value at least 2 are all but those of 0, of which there are two.
    #[test]
    fn a_small_case_counted_by_hand() {
        assert_eq!(sign_flip_p(&[1.0, 2.0, 3.0, -4.0]), 14.0 / 16.0);
    }

    #[test]
    fn ten_blocks_serve_twenty_five_cases_and_more_cases_need_more() {
        assert_eq!(fewest_differences(1, 0.05), 6);
        assert_eq!(fewest_differences(25, 0.05), 10);
        assert_eq!(fewest_differences(26, 0.05), 11);
    }

    /// Holm's own example has ordered p of 0.01, 0.02, 0.022, 0.09 at four tests.
    #[test]
    fn holm_multiplies_by_what_is_left_and_never_descends() {
        let adjusted = holm(&[0.022, 0.01, 0.09, 0.02]);
        let expected = [0.06, 0.04, 0.09, 0.06];
        assert!(adjusted.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{adjusted:?}");
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    /// Under no effect the p-value is uniform up to its grain, whatever the distribution: below 0.05 at most
    /// one time in twenty.
    #[test]
    fn the_test_keeps_its_level_on_skewed_and_wild_differences() {
        let mut rng = fastrand::Rng::with_seed(3);
        let trials = 2000;
        let rejected = (0..trials).filter(|_| {
            let wild = |_: usize| {
                let size = -(1.0 - rng.f64()).ln() * if rng.f64() < 0.1 { 20.0 } else { 1.0 };
                if rng.bool() { size } else { -size }
            };
            sign_flip_p(&(0..8).map(wild).collect::<Vec<_>>()) < 0.05
        });
        let share = rejected.count() as f64 / f64::from(trials);
        assert!((0.03..0.06).contains(&share), "{share}");
    }
}
