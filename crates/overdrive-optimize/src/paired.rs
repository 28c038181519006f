//! The loss of answers that are right or wrong: paired proportions, by Tango's score interval.
//!
//! Tango, "Equivalence test and confidence interval for the difference in proportions for the
//! paired-sample design", Stat. Med. 17 (1998). Unlike Wald's it does not shrink to nothing where
//! few answers changed.

use overdrive_bench::statistics::normal_quantile_of_tail;
use overdrive_studies::quantization::{Metric, Scores};
use serde::{Deserialize, Serialize};

/// Numbers of samples beyond this are not worth naming.
pub(crate) const MOST: f64 = 1e9;

/// Answers that changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flips {
    /// Right in float, wrong now.
    pub lost: usize,
    /// Wrong in float, right now.
    pub won: usize,
}

/// The answers that changed, where each sample is one answer.
pub(crate) fn flips(metric: Metric, float: &Scores, found: &Scores) -> Option<Flips> {
    let is_answer = |score: &f64| *score == 0.0 || *score == 100.0;
    let mut scores = float.samples.iter().chain(&found.samples);
    if metric != Metric::Top1 || !scores.all(is_answer) {
        return None;
    }
    let pairs = || float.samples.iter().zip(&found.samples);
    Some(Flips {
        lost: pairs().filter(|(a, b)| a > b).count(),
        won: pairs().filter(|(a, b)| a < b).count(),
    })
}

/// Points lost with one-sided ends, each wrong with probability `error`.
pub(crate) fn bounds_of_answers(flips: Flips, samples: usize, error: f64) -> [f64; 3] {
    bounds([flips.lost, flips.won].map(|flips| flips as f64), samples as f64, error)
}

/// Samples at which the loss would be told from the limit, were as large a share of them changed.
pub(crate) fn answers_needed(
    flips: Flips,
    (samples, error): (usize, f64),
    limit: f64,
) -> Option<u64> {
    let shares = [flips.lost, flips.won].map(|flips| flips as f64 / samples as f64);
    let decides = |count: f64| {
        let [_, low, high] = bounds(shares.map(|share| share * count), count, error);
        high <= limit || low > limit
    };
    let mut enough = samples as f64;
    while !decides(enough) {
        enough *= 2.0;
        if enough > MOST {
            return None;
        }
    }
    Some(furthest(enough / 2.0, enough, &|count| !decides(count)).ceil() as u64)
}

/// The same of shares of a number of samples.
fn bounds([lost, won]: [f64; 2], count: f64, error: f64) -> [f64; 3] {
    let z = normal_quantile_of_tail(error);
    let share = (lost - won) / count;
    let high = furthest(share, 1.0, &|delta| score([lost, won], count, delta) < z);
    // The lower bound is the upper one with losses and wins exchanged.
    let low = -furthest(-share, 1.0, &|delta| score([won, lost], count, delta) < z);
    [share, low, high].map(|share| 100.0 * share)
}

/// How many standard errors the observed loss is below `delta`, if `delta` is the true loss.
fn score([lost, won]: [f64; 2], count: f64, delta: f64) -> f64 {
    // The likeliest share of answers that were won, given that difference.
    let a = 2.0 * count;
    let b = (2.0 * count - lost + won) * delta - lost - won;
    let c = -won * delta * (1.0 - delta);
    let q = ((b * b - 4.0 * a * c).max(0.0).sqrt() - b) / (2.0 * a);
    let variance = count * (2.0 * q + delta * (1.0 - delta));
    let away = count * delta - (lost - won);
    if variance > 0.0 { away / variance.sqrt() } else { f64::INFINITY }
}

/// The furthest point between `from` and `to` that `holds`; it holds near `from`.
fn furthest(from: f64, to: f64, holds: &dyn Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (from, to);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_change_the_end_is_that_of_the_closed_form() {
        // (n delta)^2 = z^2 n delta (1 - delta), so delta = z^2 / (n + z^2).
        let z = 1.959_964;
        let [value, low, high] =
            bounds_of_answers(Flips { lost: 0, won: 0 }, 44, 0.025).map(|x| x / 100.0);
        let expected = z * z / (44.0 + z * z);
        assert_eq!(value, 0.0);
        assert!((high - expected).abs() < 1e-5 && (low + expected).abs() < 1e-5, "{low} {high}");
    }

    /// The ends hold the true loss as often as they say, by exact enumeration of all outcomes.
    #[test]
    fn ends_hold_what_is_true_as_often_as_they_say() {
        let (samples, error) = (60usize, 0.025);
        for (lose, win) in [(0.1, 0.05), (0.05, 0.05), (0.2, 0.02), (0.02, 0.0)] {
            let mut outside = 0.0;
            // Probability of `lost` and `won` of all samples, term by term.
            let mut first = (1.0f64 - lose - win).powi(samples as i32);
            for lost in 0..=samples {
                let mut one = first;
                for won in 0..=samples - lost {
                    let [_, _, high] = bounds_of_answers(Flips { lost, won }, samples, error);
                    if high < 100.0 * (lose - win) {
                        outside += one;
                    }
                    let rest = (samples - lost - won) as f64;
                    one *= rest / (won as f64 + 1.0) * win / (1.0 - lose - win);
                }
                first *= (samples - lost) as f64 / (lost as f64 + 1.0) * lose / (1.0 - lose - win);
            }
            assert!(outside < 1.6 * error, "{lose} {win}: {outside}");
        }
    }

    #[test]
    fn what_is_needed_decides() {
        let (flips, error, limit) = (Flips { lost: 3, won: 3 }, 0.001, 0.5);
        let needed = answers_needed(flips, (300, error), limit).unwrap();
        let at = |count: u64| bounds([0.01 * count as f64; 2], count as f64, error)[2];
        assert!(at(needed) <= limit && at(needed - needed / 50) > limit, "{needed}");
        let none = answers_needed(Flips { lost: 0, won: 0 }, (300, error), limit).unwrap();
        assert!((1_500..2_500).contains(&none), "{none}");
    }

    #[test]
    fn both_sides_are_alike() {
        let there = bounds_of_answers(Flips { lost: 7, won: 3 }, 200, 0.01);
        let back = bounds_of_answers(Flips { lost: 3, won: 7 }, 200, 0.01);
        for (a, b) in [(there[0], -back[0]), (there[1], -back[2]), (there[2], -back[1])] {
            assert!((a - b).abs() < 1e-9, "{there:?} {back:?}");
        }
    }
}
