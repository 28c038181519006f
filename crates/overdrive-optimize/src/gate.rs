//! Whether a form keeps a limit of loss: PASS, FAIL or UNDECIDED, from paired scores.
//!
//! A limit is kept where the upper end of the loss's one-sided interval is within it, and broken
//! where the lower end is beyond. All between is undecided, with the number of samples that would
//! decide at the spread that was seen.

use crate::paired::{Flips, MOST, answers_needed, bounds_of_answers, flips};
use overdrive_bench::statistics::student_quantile;
use overdrive_studies::quantization::{Estimate, Metric, Scores};
use serde::{Deserialize, Serialize};

/// Fewer samples than this have no interval that could be believed: no verdict comes of them.
pub const FEWEST: usize = 8;

/// The verdict on a form under a limit of loss.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The loss is within the limit.
    Pass,
    /// The loss is beyond the limit.
    Fail,
    /// The samples do not tell.
    Undecided,
}

impl Verdict {
    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Undecided => "UNDECIDED",
        }
    }
}

/// A verdict with its evidence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The loss, in the metric's unit of loss; each end is one-sided.
    pub lost: [f64; 3],
    /// Samples that judged.
    pub samples: usize,
    /// Answers that changed, of a metric of answers.
    pub flips: Option<Flips>,
    /// Samples that would decide, if the loss and the spread stay as seen; `None` where the verdict
    /// stands or no number would do.
    pub needed: Option<u64>,
}

/// How sure a verdict is to be.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Gate {
    /// The most that may be lost, in the metric's unit.
    pub limit: f64,
    /// The probability with which a form that is beyond the limit may pass, over all forms that are
    /// judged.
    pub error: f64,
    /// How many forms are judged at most: each has its part of the error (Bonferroni).
    pub forms: usize,
}

impl Gate {
    /// The error of one verdict.
    fn each(self) -> f64 {
        self.error / self.forms.max(1) as f64
    }

    /// Judges a form by its scores, paired with those of the float model.
    pub fn judge(self, metric: Metric, float: &Scores, found: &Scores) -> Judgement {
        let samples = found.samples.len();
        let lost = interval(metric, (float, found), self.each());
        let verdict = match lost {
            Some([_, _, high]) if high <= self.limit => Verdict::Pass,
            Some([_, low, _]) if low > self.limit => Verdict::Fail,
            // A loss that is not a number is beyond every limit.
            None if !finite(float, found) => Verdict::Fail,
            _ => Verdict::Undecided,
        };
        let flips = flips(metric, float, found);
        let needed = match (verdict, lost) {
            (Verdict::Undecided, Some(lost)) => self.deciding((metric, lost), float, found),
            _ => None,
        };
        let point = metric.loss(std::slice::from_ref(float), std::slice::from_ref(found)).value;
        Judgement {
            verdict,
            lost: lost.unwrap_or([point, f64::NEG_INFINITY, f64::INFINITY]),
            samples,
            flips,
            needed,
        }
    }

    /// Answers that judge at least before any form can pass, which it then does if no answer
    /// changes; `None` where no number would do.
    pub fn fewest_answers(self) -> Option<u64> {
        answers_needed(Flips { lost: 0, won: 0 }, (1, self.each()), self.limit)
    }

    /// The smallest limit in points under which so many answers can pass a form.
    pub fn least_limit(self, answers: u64) -> f64 {
        let none = Flips { lost: 0, won: 0 };
        bounds_of_answers(none, answers.max(1) as usize, self.each())[2]
    }

    /// Samples that would decide on a form, if its loss and the spread stay as these scores have
    /// them; `None` where no number would do.
    pub(crate) fn samples_to_decide(
        self,
        metric: Metric,
        float: &Scores,
        found: &Scores,
    ) -> Option<u64> {
        let lost = interval(metric, (float, found), self.each())?;
        self.deciding((metric, lost), float, found)
    }

    /// The same where the loss and its ends are known.
    fn deciding(
        self,
        (metric, [value, low, high]): (Metric, [f64; 3]),
        float: &Scores,
        found: &Scores,
    ) -> Option<u64> {
        let samples = found.samples.len();
        match flips(metric, float, found) {
            Some(flips) => answers_needed(flips, (samples, self.each()), self.limit),
            None => {
                let half = (high - value).max(value - low);
                needed(samples, half / (self.limit - value).abs())
            }
        }
    }

    /// Samples with which a form that loses nothing would pass, by the spread between two sets of
    /// scores. A user should know this before the search.
    pub fn samples_to_pass(self, metric: Metric, float: &Scores, found: &Scores) -> Option<u64> {
        let [value, low, high] = interval(metric, (float, found), self.each())?;
        if let Some(flips) = flips(metric, float, found) {
            // As many change either way.
            let both = (flips.lost + flips.won).div_ceil(2);
            let alike = Flips { lost: both, won: both };
            return answers_needed(alike, (found.samples.len(), self.each()), self.limit);
        }
        needed(found.samples.len(), (high - value).max(value - low) / self.limit)
    }
}

/// An interval shrinks with the root of the samples.
fn needed(samples: usize, times_narrower: f64) -> Option<u64> {
    let count = samples as f64 * times_narrower.powi(2);
    (count.is_finite() && count < MOST).then_some(count.ceil() as u64)
}

fn finite(float: &Scores, found: &Scores) -> bool {
    float.samples.iter().chain(&found.samples).all(|score| score.is_finite())
}

/// The loss with its one-sided ends, each wrong with probability `error`; `None` where scores are
/// too few or not finite.
fn interval(metric: Metric, (float, found): (&Scores, &Scores), error: f64) -> Option<[f64; 3]> {
    if found.samples.len() < FEWEST || !finite(float, found) {
        return None;
    }
    if let Some(flips) = flips(metric, float, found) {
        return Some(bounds_of_answers(flips, found.samples.len(), error));
    }
    let pairs = float.samples.iter().zip(&found.samples);
    let differences: Vec<f64> = match metric {
        Metric::Perplexity | Metric::SquaredError => pairs.map(|(a, b)| b - a).collect(),
        Metric::Top1 | Metric::Cosine => pairs.map(|(a, b)| a - b).collect(),
    };
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let squares = differences.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    let half = student_quantile(1.0 - error, differences.len() - 1)
        * (squares / (count - 1.0) / count).sqrt();
    let estimate = Estimate::around(mean, half);
    let in_unit = match metric {
        Metric::Perplexity => estimate.map(|nats| 100.0 * nats.exp_m1()),
        Metric::Top1 | Metric::Cosine | Metric::SquaredError => estimate,
    };
    Some([in_unit.value, in_unit.low, in_unit.high])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(samples: Vec<f64>) -> Scores {
        Scores { fold: 0, samples }
    }

    const GATE: Gate = Gate { limit: 0.5, error: 0.001, forms: 3 };

    /// A float model that is right in nine cases of ten, and one that loses `points` of that. The
    /// noise between them is that of 8-bit codes.
    fn planted(points: f64, samples: usize, seed: u64) -> [Scores; 2] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (noise, mut pair) = (0.01, [Vec::new(), Vec::new()]);
        for _ in 0..samples {
            let u = rng.f64();
            let (float, found) = if u < noise + points / 100.0 {
                (100.0, 0.0)
            } else if u < 2.0 * noise + points / 100.0 {
                (0.0, 100.0)
            } else if u < 0.9 {
                (100.0, 100.0)
            } else {
                (0.0, 0.0)
            };
            pair[0].push(float);
            pair[1].push(found);
        }
        pair.map(scores)
    }

    #[test]
    fn a_model_that_loses_too_much_never_passes() {
        for samples in [360, 1_000, 3_000, 10_000] {
            for seed in 0..200 {
                let [float, found] = planted(0.8, samples, seed);
                let judged = GATE.judge(Metric::Top1, &float, &found);
                assert_ne!(judged.verdict, Verdict::Pass, "{samples} samples, seed {seed}");
            }
        }
    }

    #[test]
    fn a_model_that_loses_little_passes_where_there_are_samples_for_it() {
        let verdict = |samples, seed| {
            let [float, found] = planted(0.2, samples, seed);
            GATE.judge(Metric::Top1, &float, &found).verdict
        };
        for seed in 0..50 {
            assert_ne!(verdict(1_000, seed), Verdict::Fail, "seed {seed}");
        }
        let passed = (0..50).filter(|&seed| verdict(100_000, seed) == Verdict::Pass).count();
        assert!(passed >= 49, "{passed} of 50");
    }

    #[test]
    fn an_undecided_verdict_says_what_would_decide() {
        let [float, found] = planted(0.0, 1_000, 1);
        let judged = GATE.judge(Metric::Top1, &float, &found);
        assert_eq!(judged.verdict, Verdict::Undecided);
        let needed = judged.needed.expect("no loss is far from the limit");
        assert!((2_000..200_000).contains(&needed), "{needed}");
        let few = GATE.judge(Metric::Top1, &scores(vec![100.0; 4]), &scores(vec![100.0; 4]));
        assert_eq!((few.verdict, few.needed), (Verdict::Undecided, None), "four say nothing");
    }

    #[test]
    fn continuous_scores_are_judged_by_their_paired_differences() {
        let nats: Vec<f64> = (0..64).map(|i| 3.0 + f64::from(i % 7)).collect();
        let worse = |by: f64| {
            let shifted = nats.iter().enumerate();
            scores(shifted.map(|(i, x)| x + by + 1e-4 * (i % 3) as f64).collect())
        };
        let of = |by| GATE.judge(Metric::Perplexity, &scores(nats.clone()), &worse(by)).verdict;
        assert_eq!(of(0.001), Verdict::Pass);
        assert_eq!(of(0.01), Verdict::Fail);
        let broken = scores(vec![f64::NAN; 64]);
        let judged = GATE.judge(Metric::Perplexity, &scores(nats.clone()), &broken);
        assert_eq!(judged.verdict, Verdict::Fail);
    }
}
