//! A figure with its 95 % interval, over samples and, where there are several, over trained models.

use overdrive_bench::statistics::student_quantile;

/// A figure and the ends of its 95 % interval.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// 97.5 % of a normal distribution lie below.
const NORMAL: f64 = 1.959_964;

impl Estimate {
    /// The figure with its ends at `half` a width from it.
    pub fn around(value: f64, half: f64) -> Self {
        Self { value, low: value - half, high: value + half }
    }

    /// An increasing function of the figure.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { value: f(self.value), low: f(self.low), high: f(self.high) }
    }

    /// Whether all of the interval is above 0.
    pub fn is_positive(&self) -> bool {
        self.low > 0.0
    }
}

/// The mean of a value over samples, judged by several models: `of_models` has the samples of each
/// model's fold, in order, and the fold's number.
///
/// Models of one fold judge the same samples. So a sample is one observation, its mean over those
/// models. Two samples of value `bound` and `-bound` are added. Without them, samples that show no
/// difference would give an interval of width 0. Source: Agresti and Min, "Simple improved
/// confidence intervals for comparing matched proportions", Stat. Med. 2005. With several models
/// their means give a second interval by Student's t; the wider of the two is taken.
pub fn mean(of_models: &[(usize, Vec<f64>)], bound: f64) -> Estimate {
    let samples = by_sample(of_models);
    let count = samples.len() as f64;
    let value = samples.iter().sum::<f64>() / count;
    let squares = samples.iter().map(|x| (x - value).powi(2)).sum::<f64>() + bound.powi(2);
    let half = NORMAL * squares.sqrt() / (count + if bound > 0.0 { 2.0 } else { 0.0 });
    let means: Vec<f64> = of_models
        .iter()
        .map(|(_, values)| values.iter().sum::<f64>() / values.len() as f64)
        .collect();
    Estimate::around(value, half.max(student_half_width(&means)))
}

/// Half the width of the interval of the mean by Student's t; 0 of one value, which says nothing of
/// itself.
fn student_half_width(means: &[f64]) -> f64 {
    let count = means.len() as f64;
    if means.len() < 2 {
        return 0.0;
    }
    let mean = means.iter().sum::<f64>() / count;
    let variance = means.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
    student_quantile(0.975, means.len() - 1) * (variance / count).sqrt()
}

/// Each sample's mean over the models of its fold.
fn by_sample(of_models: &[(usize, Vec<f64>)]) -> Vec<f64> {
    let mut folds: Vec<(usize, Vec<f64>, f64)> = Vec::new();
    for (fold, values) in of_models {
        match folds.iter_mut().find(|(known, ..)| known == fold) {
            Some((_, sums, models)) => {
                assert_eq!(sums.len(), values.len(), "models of a fold judge the same samples");
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                *models += 1.0;
            }
            None => folds.push((*fold, values.clone(), 1.0)),
        }
    }
    folds
        .into_iter()
        .flat_map(|(_, sums, models)| sums.into_iter().map(move |sum| sum / models))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_a_fold_share_their_samples() {
        let found = mean(&[(0, vec![1.0, 0.0]), (0, vec![0.0, 0.0]), (1, vec![1.0, 1.0])], 0.0);
        assert_eq!(found.value, (0.5 + 0.0 + 1.0 + 1.0) / 4.0);
        assert!(found.low < 0.625 && found.high > 0.625);
    }

    #[test]
    fn no_difference_seen_is_not_no_difference() {
        let none = vec![0.0; 360];
        let found = mean(&[(0, none.clone())], 1.0);
        assert_eq!(found.value, 0.0);
        assert!((found.high - NORMAL / 362.0).abs() < 1e-12, "{found:?}");
        assert_eq!(mean(&[(0, none)], 0.0).high, 0.0);
    }

    #[test]
    fn models_that_disagree_widen_it() {
        let fold = |value: f64| vec![value; 100];
        let alike = mean(&[(0, fold(0.1)), (1, fold(0.1))], 1.0);
        let apart = mean(&[(0, fold(0.0)), (1, fold(0.2))], 1.0);
        assert!((alike.value - apart.value).abs() < 1e-12);
        assert!(apart.high - apart.low > 10.0 * (alike.high - alike.low), "{apart:?} {alike:?}");
    }

    #[test]
    fn ends_follow_the_figure() {
        let found = Estimate::around(0.01, 0.005).map(f64::exp_m1);
        assert!(found.low < found.value && found.value < found.high && found.is_positive());
    }
}
