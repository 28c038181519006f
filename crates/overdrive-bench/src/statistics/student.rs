//! Student's t distribution with a whole number of degrees of freedom: exact, from its finite
//! series.

use std::f64::consts::PI;

/// `P(|T| <= t)` for `t >= 0`: Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even).
fn central_probability(t: f64, degrees: usize) -> f64 {
    let angle = (t / (degrees as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    // sin (1 + 1/2 cos^2 + (1 3)/(2 4) cos^4 + ...), or sin (cos + 2/3 cos^3 + (2 4)/(3 5) cos^5 +
    // ...)
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    for step in 0..(degrees - usize::from(odd)) / 2 {
        sum += term;
        let factor = if odd {
            (2 * step + 2) as f64 / (2 * step + 3) as f64
        } else {
            (2 * step + 1) as f64 / (2 * step + 2) as f64
        };
        term *= factor * cos * cos;
    }
    if odd { 2.0 / PI * (angle + sin * sum) } else { sin * sum }
}

/// The `t` that `T` stays below with probability `p`, `0.5 <= p < 1`, at `degrees >= 1` degrees of
/// freedom.
pub fn student_quantile(p: f64, degrees: usize) -> f64 {
    assert!(
        (0.5..1.0).contains(&p) && degrees >= 1,
        "no upper quantile {p} of {degrees} degrees of freedom"
    );
    let central = 2.0 * p - 1.0;
    let mut high = 1.0;
    while central_probability(high, degrees) < central {
        high *= 2.0;
    }
    let mut low = 0.0;
    // Sixty halvings leave less than the spacing of f64.
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if central_probability(middle, degrees) < central { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tabulated values, Abramowitz and Stegun table 26.10 and any book since.
    #[test]
    fn quantiles_agree_with_the_tables() {
        for (p, degrees, t) in [
            (0.975, 1, 12.7062),
            (0.975, 2, 4.3027),
            (0.95, 2, 2.9200),
            (0.975, 9, 2.2622),
            (0.95, 9, 1.8331),
            (0.8, 9, 0.8834),
            (0.975, 10, 2.2281),
            (0.995, 4, 4.6041),
            (0.975, 120, 1.9799),
        ] {
            let found = student_quantile(p, degrees);
            assert!((found - t).abs() < 5e-5, "t({p}, {degrees}) = {found}, tabulated {t}");
        }
        assert!(student_quantile(0.5, 7).abs() < 1e-12);
    }
}
