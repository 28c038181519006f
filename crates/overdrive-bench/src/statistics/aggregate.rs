//! One number for several workloads, which only a geometric mean of ratios may be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A geometric mean that cannot be quoted without its count and range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GeometricMean {
    /// The n-th root of the product.
    pub mean: f64,
    /// How many ratios went into it.
    pub count: usize,
    /// The smallest of them.
    pub min: f64,
    /// The largest of them.
    pub max: f64,
}

/// The geometric mean of positive ratios; `None` if there are none or one is not positive and
/// finite.
pub fn geometric_mean(ratios: &[f64]) -> Option<GeometricMean> {
    if ratios.is_empty() || ratios.iter().any(|ratio| !ratio.is_finite() || *ratio <= 0.0) {
        return None;
    }
    Some(GeometricMean {
        mean: (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp(),
        count: ratios.len(),
        min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        max: ratios.iter().copied().fold(0.0, f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubling_and_a_halving_cancel() {
        let mean = geometric_mean(&[2.0, 0.5, 1.0]).unwrap();
        assert!((mean.mean - 1.0).abs() < 1e-12);
        assert_eq!((mean.count, mean.min, mean.max), (3, 0.5, 2.0));
    }

    #[test]
    fn a_missing_or_zero_ratio_is_not_a_number() {
        assert!(geometric_mean(&[]).is_none());
        assert!(geometric_mean(&[1.0, 0.0]).is_none());
        assert!(geometric_mean(&[1.0, f64::NAN]).is_none());
    }
}
