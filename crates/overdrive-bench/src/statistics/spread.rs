//! Means and measures of spread, plain and robust, and Tukey's fences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, Interval, Sorted, student_quantile};

/// Scales a median absolute deviation to the standard deviation that a normal distribution would
/// have.
pub(crate) const MAD_TO_SIGMA: f64 = 1.4826;

/// Which of Tukey's fences a sample is beyond: 1.5 (mild) or 3 (severe) interquartile ranges
/// outside the quartiles.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// More than 3 interquartile ranges below the first quartile.
    SevereLow,
    /// More than 1.5 below the first.
    MildLow,
    /// More than 1.5 above the third.
    MildHigh,
    /// More than 3 above the third.
    SevereHigh,
}

impl Sorted {
    /// The arithmetic mean.
    pub fn mean(&self) -> f64 {
        mean(self.values())
    }

    /// The 95 % interval of the mean, by Student's t; `None` below six values, as for the median.
    pub fn mean_interval(&self) -> Option<Interval> {
        let n = self.count();
        let deviation = self.standard_deviation().filter(|_| n >= 6)?;
        let reach =
            student_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, n - 1) * deviation / (n as f64).sqrt();
        let mean = self.mean();
        Some(Interval { low: mean - reach, high: mean + reach, confidence: CONFIDENCE })
    }

    /// The sample standard deviation (divisor n - 1); `None` of a single value.
    pub fn standard_deviation(&self) -> Option<f64> {
        let n = self.count() as f64;
        (n > 1.0).then(|| (self.squared_deviations() / (n - 1.0)).sqrt())
    }

    /// Standard deviation over mean, both of the samples as a population (divisor n). One sample
    /// that outweighs all others brings it to its ceiling, sqrt(n - 1).
    pub fn coefficient_of_variation(&self) -> f64 {
        (self.squared_deviations() / self.count() as f64).sqrt() / self.mean()
    }

    /// The median absolute deviation from the median, unscaled.
    pub fn median_absolute_deviation(&self) -> f64 {
        let median = self.median();
        let deviations: Vec<f64> =
            self.values().iter().map(|value| (value - median).abs()).collect();
        Sorted::new(&deviations).expect("deviations of finite numbers are finite").median()
    }

    /// Third quartile less first.
    pub fn interquartile_range(&self) -> f64 {
        self.quantile(0.75) - self.quantile(0.25)
    }

    /// The interquartile range over the median; how scattered the bulk of the samples is.
    pub fn relative_interquartile_range(&self) -> f64 {
        self.interquartile_range() / self.median()
    }

    /// Which of Tukey's fences `value` lies beyond, if any.
    pub fn fence(&self, value: f64) -> Option<Fence> {
        let (first, third) = (self.quantile(0.25), self.quantile(0.75));
        let range = third - first;
        match value {
            v if v < first - 3.0 * range => Some(Fence::SevereLow),
            v if v < first - 1.5 * range => Some(Fence::MildLow),
            v if v > third + 3.0 * range => Some(Fence::SevereHigh),
            v if v > third + 1.5 * range => Some(Fence::MildHigh),
            _ => None,
        }
    }

    /// The mean of the values within the 1.5-range fences. It answers another question than the
    /// mean does, and is never printed without its full name.
    pub fn tukey_trimmed_mean(&self) -> f64 {
        let kept: Vec<f64> =
            self.values().iter().copied().filter(|&v| self.fence(v).is_none()).collect();
        mean(&kept)
    }

    fn squared_deviations(&self) -> f64 {
        let mean = self.mean();
        self.values().iter().map(|value| (value - mean).powi(2)).sum()
    }
}

/// The mean of at least one value.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(values: &[f64]) -> Sorted {
        Sorted::new(values).unwrap()
    }

    #[test]
    fn textbook_values() {
        let s = sorted(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(s.mean(), 5.0);
        assert!((s.coefficient_of_variation() - 0.4).abs() < 1e-12);
        assert!((s.standard_deviation().unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(s.median_absolute_deviation(), 0.5);
        assert_eq!(s.interquartile_range(), 1.5);
        assert!(sorted(&[1.0]).standard_deviation().is_none());
    }

    #[test]
    fn fences_label_mild_and_severe_on_both_sides() {
        // Quartiles 2 and 4, range 2: mild beyond -1 and 7, severe beyond -4 and 10.
        let s = sorted(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(s.fence(-4.1), Some(Fence::SevereLow));
        assert_eq!(s.fence(-1.1), Some(Fence::MildLow));
        assert_eq!(s.fence(3.0), None);
        assert_eq!(s.fence(7.0), None);
        assert_eq!(s.fence(7.1), Some(Fence::MildHigh));
        assert_eq!(s.fence(10.1), Some(Fence::SevereHigh));
        assert_eq!(sorted(&[1.0, 2.0, 3.0, 4.0, 100.0]).tukey_trimmed_mean(), 2.5);
    }

    proptest! {
        #[test]
        fn deviations_agree_with_their_definitions(
            values in prop::collection::vec(0.1..1e3_f64, 2..40),
        ) {
            let s = sorted(&values);
            let n = values.len() as f64;
            let square = |a: &f64| values.iter().map(|b| (a - b).powi(2)).sum::<f64>();
            let pairs: f64 = values.iter().map(square).sum();
            // The variance is half of the mean squared difference of all pairs.
            let variance = pairs / (2.0 * n * (n - 1.0));
            let deviation = s.standard_deviation().unwrap();
            prop_assert!((deviation - variance.sqrt()).abs() < 1e-6 * (1.0 + variance));
            prop_assert!(s.coefficient_of_variation() <= (n - 1.0).sqrt() + 1e-9);
            prop_assert!(s.tukey_trimmed_mean() >= s.min() && s.tukey_trimmed_mean() <= s.max());
        }
    }
}
