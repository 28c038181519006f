//! Chooses the range that static codes cover, from observed activations.
//!
//! Sources: percentiles and entropy: Wu et al., "Integer quantization for deep learning inference",
//! arXiv:2004.09602; entropy: Migacz, "8-bit inference with TensorRT", GTC 2017.

use crate::histogram_value;
use overdrive_ir::{BlockFormat, DType, Granularity, Mismatch};
use serde::{Deserialize, Serialize};

/// How a range follows from the observed values.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RangeRule {
    /// From the smallest to the largest.
    #[default]
    MinMax,
    /// This share of the elements, 0 to 1; the rest is cut in equal parts at both ends.
    Percentile(f64),
    /// The share of the range that errs least in the mean square.
    Mse,
    /// The share of the range whose rounded distribution is nearest to the one seen, by relative
    /// entropy.
    Entropy,
}

/// Shares of the range that are tried, in hundredths.
const SHARES: std::ops::RangeInclusive<u32> = 20..=100;
/// Equal bins that the relative entropy is taken over.
const LEVELS: usize = 2048;

/// The range `[low, high]`, of codes of type `element`, for activations that were `seen` between
/// two ends and fall into the bins of a [`Statistic::Histogram`](crate::Statistic::Histogram).
///
/// # Errors
/// When nothing finite was seen, or a rule needs a histogram and there is none.
pub fn activation_range(
    rule: RangeRule,
    element: DType,
    seen: [f64; 2],
    histogram: Option<&[f64]>,
) -> Result<[f64; 2], Mismatch> {
    if !seen.iter().all(|x| x.is_finite()) {
        return Err(Mismatch::new("finite activations", format!("{} to {}", seen[0], seen[1]))
            .remedy("calibrate on samples that the model can take"));
    }
    if rule == RangeRule::MinMax {
        return Ok(seen);
    }
    let counts = histogram
        .ok_or_else(|| Mismatch::new("a histogram of activations", "their range alone"))?;
    let mut bins: Vec<(f64, f64)> =
        counts.iter().enumerate().map(|(bin, &n)| (histogram_value(bin), n)).collect();
    bins.retain(|(value, count)| *count > 0.0 && value.is_finite());
    bins.sort_by(|a, b| a.0.total_cmp(&b.0));
    let scaled = |share: u32| seen.map(|x| x * f64::from(share) / 100.0);
    let best = |loss: &dyn Fn([f64; 2]) -> f64| {
        let tried = SHARES.map(|share| (loss(scaled(share)), scaled(share)));
        tried.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(seen, |(_, range)| range)
    };
    Ok(match rule {
        RangeRule::MinMax => seen,
        RangeRule::Percentile(share) => percentile(&bins, share, seen),
        RangeRule::Mse => best(&|range| squares(&bins, element, range)),
        RangeRule::Entropy => best(&|range| divergence(&bins, element, seen, range)),
    })
}

fn percentile(bins: &[(f64, f64)], share: f64, seen: [f64; 2]) -> [f64; 2] {
    let total: f64 = bins.iter().map(|(_, n)| n).sum();
    let tail = total * (1.0 - share) / 2.0;
    let beyond = |passed: &mut f64, n: f64| {
        *passed += n;
        *passed > tail
    };
    let (mut below, mut above) = (0.0, 0.0);
    let low =
        bins.iter().find(|(_, n)| beyond(&mut below, *n)).map_or(seen[0], |(value, _)| *value);
    let high =
        bins.iter().rfind(|(_, n)| beyond(&mut above, *n)).map_or(seen[1], |(value, _)| *value);
    [low.max(seen[0]), high.min(seen[1])]
}

/// The value that a value becomes.
fn rounded(element: DType, range: [f64; 2]) -> impl Fn(f64) -> f64 {
    let format = BlockFormat::plain(element, Granularity::Tensor);
    let format = if element.is_int() { format.asymmetric() } else { format };
    let grid = format.grid(range, 1.0);
    move |x| format.value(format.code(x, grid), grid)
}

fn squares(bins: &[(f64, f64)], element: DType, range: [f64; 2]) -> f64 {
    let rounded = rounded(element, range);
    bins.iter().map(|&(x, n)| n * (x - rounded(x)).powi(2)).sum()
}

/// Relative entropy of what was seen, clipped to the range, against what its codes stand for,
/// spread evenly over the levels that share a code.
fn divergence(bins: &[(f64, f64)], element: DType, seen: [f64; 2], range: [f64; 2]) -> f64 {
    let width = (seen[1] - seen[0]).max(f64::MIN_POSITIVE) / LEVELS as f64;
    let level = |x: f64| (((x - seen[0]) / width) as usize).min(LEVELS - 1);
    let mut clipped = vec![0.0; LEVELS];
    let mut inside = vec![0.0; LEVELS];
    for &(x, n) in bins {
        clipped[level(x.clamp(range[0], range[1]))] += n;
        if (range[0]..=range[1]).contains(&x) {
            inside[level(x)] += n;
        }
    }
    let rounded = rounded(element, range);
    let code_of = |at: usize| rounded(seen[0] + (at as f64 + 0.5) * width);
    let mut spread = vec![0.0; LEVELS];
    let mut from = 0;
    while from < LEVELS {
        let code = code_of(from);
        let to = (from..LEVELS).find(|&at| code_of(at) != code).unwrap_or(LEVELS);
        let used = inside[from..to].iter().filter(|n| **n > 0.0).count().max(1) as f64;
        let mean = inside[from..to].iter().sum::<f64>() / used;
        (from..to).filter(|&at| inside[at] > 0.0).for_each(|at| spread[at] = mean);
        from = to;
    }
    let totals: [f64; 2] = [clipped.iter().sum(), spread.iter().sum()];
    let term = |(p, q): (&f64, &f64)| {
        let (p, q) = (p / totals[0], (q / totals[1]).max(1e-12));
        if p > 0.0 { p * (p / q).ln() } else { 0.0 }
    };
    clipped.iter().zip(&spread).map(term).sum()
}
