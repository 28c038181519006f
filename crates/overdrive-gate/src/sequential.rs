//! When a session looks at its blocks, and how much of the error each look may spend.
//!
//! Looking again and again until a test rejects makes any fixed level worthless. Looks are
//! therefore fixed in advance, at 10, 13, 17, 22, ... blocks. They spend the shares 1/2, 1/6, 1/12,
//! 1/20, ... of the level, which sum to one. By Bonferroni's inequality, the chance that any look
//! of a whole session errs is then below the level. This holds for every length of the session
//! (alpha spending, Lan and DeMets 1983). The look at which time is up spends the rest.

use super::signed_rank::{SignedRank, reach};

/// The chance of any error over all looks of a session, two-sided.
pub const ALPHA: f64 = 0.01;
/// Blocks of the first look: of ten, 1,024 patterns of signs are as likely.
pub const FIRST_LOOK: usize = 10;
/// More blocks than this gain nothing, since noise changes from hour to hour.
pub const MOST_BLOCKS: usize = 1000;

/// A look at the first blocks of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Look {
    /// The number of elements.
    pub(super) blocks: usize,
    /// The share of the level that it spends.
    share: f64,
}

/// Whether a session looks after so many blocks.
pub(super) fn is_look(blocks: usize) -> bool {
    looks().take_while(|look| look.blocks <= blocks).any(|look| look.blocks == blocks)
}

/// Every look, ever more blocks apart.
fn looks() -> impl Iterator<Item = Look> {
    let counts = std::iter::successors(Some(FIRST_LOOK), |blocks| Some((blocks * 5).div_ceil(4)));
    counts
        .zip(1..)
        .map(|(blocks, index)| Look { blocks, share: 1.0 / f64::from(index * (index + 1)) })
}

/// Whether a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// More blocks may come.
    Open,
    /// None will: the last look spends what is left.
    Over,
}

impl Look {
    /// The latest look at `blocks` blocks; `None` before the first.
    pub(super) fn latest(blocks: usize, course: Course) -> Option<Self> {
        let earlier = || looks().take_while(|look| look.blocks <= blocks);
        match course {
            Course::Open => earlier().last(),
            Course::Over => {
                let spent: f64 =
                    earlier().filter(|look| look.blocks < blocks).map(|look| look.share).sum();
                (blocks > 0).then_some(Self { blocks, share: 1.0 - spent })
            }
        }
    }

    /// The level of its interval.
    pub(super) fn alpha(&self) -> f64 {
        ALPHA * self.share
    }
}

/// The statistics of one figure's blocks at a look.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    /// The estimate, on the scale of the comparison.
    pub(super) centre: f64,
    /// Ends of the interval, which misses the truth at any look of the session with a chance of at
    /// most [`ALPHA`].
    pub(super) low: f64,
    pub(super) high: f64,
    /// The plain mean of the blocks.
    pub(super) mean: f64,
    /// p, valid at every look.
    pub(super) p: f64,
    /// The scatter of one block: the deviation of normal blocks whose interval is as wide.
    pub(super) deviation: f64,
    /// Blocks behind it.
    pub(super) blocks: usize,
}

/// Looks at the first blocks; `None` of too few for an interval.
pub(super) fn see(contrasts: &[f64], look: Look) -> Option<Seen> {
    let contrasts = &contrasts[..look.blocks];
    let test = SignedRank::of(contrasts)?;
    let (low, high) = test.interval(look.alpha())?;
    let count = contrasts.len() as f64;
    Some(Seen {
        centre: test.centre(),
        low,
        high,
        mean: contrasts.iter().sum::<f64>() / count,
        p: (test.p() / look.share).min(1.0),
        deviation: (high - low) / 2.0 / reach(look.alpha()) * count.sqrt(),
        blocks: contrasts.len(),
    })
}

/// The look at which blocks that scatter by `deviation` would decide, as told by their number and
/// the half-width of the interval then; `None` where that would not be within [`MOST_BLOCKS`].
pub(super) fn decides_at(
    after: usize,
    deviation: f64,
    decides: impl Fn(f64) -> bool,
) -> Option<usize> {
    let later = looks()
        .skip_while(|look| look.blocks <= after)
        .take_while(|look| look.blocks <= MOST_BLOCKS);
    let half = |look: &Look| reach(look.alpha()) * deviation / (look.blocks as f64).sqrt();
    later
        .map(|look| (look.blocks, half(&look)))
        .find(|(_, half)| decides(*half))
        .map(|(blocks, _)| blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_spend_the_level_and_no_more() {
        let counts: Vec<usize> = looks().take(6).map(|look| look.blocks).collect();
        assert_eq!(counts, [10, 13, 17, 22, 28, 35]);
        let spent: f64 = looks().take(100).map(|look| look.share).sum();
        assert!((0.99..1.0).contains(&spent), "{spent}");
        assert!(is_look(10) && is_look(22) && !is_look(9) && !is_look(21));
        for blocks in [1, 9, 10, 11, 22, 500] {
            let last = Look::latest(blocks, Course::Over).unwrap();
            let before: f64 =
                looks().take_while(|look| look.blocks < blocks).map(|look| look.share).sum();
            assert!((before + last.share - 1.0).abs() < 1e-12 && last.blocks == blocks);
        }
        assert_eq!(Look::latest(9, Course::Open), None);
        assert_eq!(Look::latest(16, Course::Open).unwrap().blocks, 13);
        assert_eq!(Look::latest(0, Course::Over), None);
    }

    /// The promise that everything rests on, at 5,000 sessions of blocks with two modes, wild
    /// values and no effect. Under 1 % are wrong at any of ten looks.
    #[test]
    fn an_interval_of_any_look_seldom_misses() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sessions = 5000;
        let errs = |_: &u32| {
            let draw = |_| {
                let size = rng.f64() + if rng.f64() < 0.3 { 1.0 } else { 0.0 };
                let size = if rng.f64() < 0.05 { 20.0 * size } else { size };
                if rng.bool() { size } else { -size }
            };
            let blocks: Vec<f64> = (0..75).map(draw).collect();
            let ends = rng.usize(10..75);
            let mut seen: Vec<Seen> = looks()
                .take_while(|look| look.blocks < ends)
                .filter_map(|look| see(&blocks, look))
                .collect();
            seen.extend(see(&blocks, Look::latest(ends, Course::Over).unwrap()));
            seen.iter().any(|seen| {
                assert_eq!(seen.p <= ALPHA, seen.low > 0.0 || seen.high < 0.0);
                seen.p <= ALPHA
            })
        };
        let wrong = (0..sessions).filter(errs).count();
        assert!((5..=50).contains(&wrong), "{wrong} of {sessions}");
    }

    #[test]
    fn what_would_decide_is_told_within_reason() {
        assert_eq!(decides_at(10, 0.02, |half| half < 0.02), Some(13));
        assert_eq!(decides_at(10, 0.02, |half| half < 1e-4), None);
        assert_eq!(see(&[0.1; 7], Look::latest(7, Course::Over).unwrap()), None);
    }
}
