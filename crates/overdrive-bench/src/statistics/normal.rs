//! The standard normal distribution: its upper tail, with relative accuracy far out, and its
//! quantiles.

use std::f64::consts::TAU;

/// Below this the series of the centre is used, above it the continued fraction of the tail.
const CENTRE: f64 = 2.0;

/// `P(Z > z)` for `z >= 0`.
pub fn normal_tail(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / TAU.sqrt();
    if z < CENTRE {
        // 1/2 - density (z + z^3 / 3 + z^5 / (3 5) + ...)
        let (mut term, mut sum) = (z, 0.0);
        for step in 1..60 {
            sum += term;
            term *= z * z / f64::from(2 * step + 1);
        }
        return 0.5 - density * sum;
    }
    // density / (z + 1 / (z + 2 / (z + 3 / ...))), Laplace
    let fraction = (1..120).rev().fold(z, |below, step| z + f64::from(step) / below);
    density / fraction
}

/// The `z >= 0` with `P(Z > z) = tail`, `0 < tail <= 0.5`.
pub fn normal_quantile_of_tail(tail: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_tail(middle) > tail { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abramowitz and Stegun, table 26.1.
    #[test]
    fn tails_and_quantiles_agree_with_the_tables() {
        for (z, tail) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457_05),
            (1.999_999, 0.022_750_185_939_472_9),
            (2.000_001, 0.022_750_077_957_286_5),
            (3.0, 0.001_349_898_031_630_09),
            (5.0, 2.866_515_718_791_94e-7),
        ] {
            let found = normal_tail(z);
            assert!((found / tail - 1.0).abs() < 1e-9, "{z}: {found}, tabulated {tail}");
            assert!((normal_quantile_of_tail(tail) - z).abs() < 1e-6, "the quantile of {tail}");
        }
    }
}
