//! Blocks of six fresh processes: the order they run in, and the one number that each figure gets
//! from a block.

use overdrive_bench::verdicts::{Block, Observed, Side};

use super::metric::Metric;

/// The order of a block's processes: A, B and C in any order, and then the same mirrored, so that
/// linear drift cancels. Baseline and current alone are A B B A or B A A B.
///
/// A coin decides which, so that either of two sides was as likely to stand at the other's place.
/// The signed-rank test asks for no more, however noise is correlated in time.
pub fn order(seed: u64, block: usize) -> [Side; 6] {
    let mut half = [Side::Baseline, Side::Current, Side::Control];
    fastrand::Rng::with_seed(seed ^ (block as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .shuffle(&mut half);
    let [a, b, c] = half;
    [a, b, c, c, b, a]
}

/// How much worse than the baseline's the figure of `side` is, in the mean of two processes
/// each: over 0, it is worse. `None` unless all four have the figure: with three, drift no
/// longer cancels.
pub(super) fn contrast(
    block: &Block,
    (case, side): (&str, Side),
    metric: &Metric,
    read: impl Fn(&Observed) -> Option<f64>,
) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (ran, observed) in
        block.observed(case).filter(|(ran, _)| [Side::Baseline, side].contains(ran))
    {
        let badness = metric.badness(read(observed)?)?;
        sum += if ran == side { badness } else { -badness };
        count += 1;
    }
    (count == 4).then_some(sum / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::metric;
    use overdrive_bench::verdicts::{MEDIAN, Observations};

    fn contrast(block: &Block, case: &str, side: Side) -> Option<f64> {
        super::contrast(block, (case, side), &metric(MEDIAN).unwrap(), |observed| {
            observed.figure(MEDIAN)
        })
    }

    fn block(order: [Side; 6], time: impl Fn(usize, Side) -> f64) -> Block {
        let run = |(position, side): (usize, Side)| {
            let observed = Observed::of_time(time(position, side));
            (side, Observations::from([("case".to_owned(), Ok(observed))]))
        };
        Block { runs: order.into_iter().enumerate().map(run).collect() }
    }

    #[test]
    fn exponential_drift_cancels_in_every_order() {
        for index in 0..20 {
            let drifting = block(order(1, index), |position, side| {
                1.1_f64.powi(position as i32) * if side == Side::Current { 1.07 } else { 1.0 }
            });
            let log = contrast(&drifting, "case", Side::Current).unwrap();
            assert!((log - 1.07_f64.ln()).abs() < 1e-12, "{log}");
            assert!(contrast(&drifting, "case", Side::Control).unwrap().abs() < 1e-12);
        }
    }

    #[test]
    fn a_coin_decides_who_is_outside() {
        let blocks = 600;
        let first = |side: Side| {
            let leads = |block: &usize| {
                let order = order(7, *block);
                assert!((0..6).all(|at| order[at] == order[5 - at]));
                order[0] == side
            };
            (0..blocks).filter(leads).count()
        };
        for side in [Side::Baseline, Side::Current, Side::Control] {
            assert!((150..250).contains(&first(side)), "{side} leads {} of {blocks}", first(side));
        }
        assert_eq!(order(7, 3), order(7, 3));
    }

    #[test]
    fn an_incomplete_block_has_no_datum() {
        let mut cut = block(order(1, 0), |_, _| 1.0);
        assert_eq!(contrast(&cut, "case", Side::Current), Some(0.0));
        assert_eq!(contrast(&cut, "other", Side::Current), None);
        let lost = cut.runs.iter().position(|(side, _)| *side == Side::Control).unwrap();
        cut.runs.remove(lost);
        assert_eq!(contrast(&cut, "case", Side::Control), None);
        assert_eq!(contrast(&cut, "case", Side::Current), Some(0.0));
    }
}
