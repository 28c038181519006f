//! As many digits as the interval supports: `1.93 [1.90, 1.96]`, never `1.9287 [1.8991, 1.9612]`.

/// Decimals that put the last printed digit at the leading digit of `half_width`; three where nothing is known
/// of it, six at most.
pub fn decimals(half_width: Option<f64>) -> usize {
    match half_width {
        Some(width) if width > 0.0 && width.is_finite() => (-width.log10().floor()).clamp(0.0, 6.0) as usize,
        _ => 3,
    }
}

/// A time in the unit that leaves one to three digits before the point: `1.23 ms`. `half_width_ns` trims it.
pub fn time(ns: f64, half_width_ns: Option<f64>) -> String {
    scaled(ns, half_width_ns, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")])
}

/// A size in binary units: `1.50 MiB`; exact below 1 KiB.
pub fn bytes(count: u64) -> String {
    const UNITS: [(f64, &str); 4] =
        [(1024.0, "KiB"), (1048576.0, "MiB"), (1073741824.0, "GiB"), (1099511627776.0, "TiB")];
    if count < 1024 {
        return format!("{count} B");
    }
    let (scale, unit) = UNITS.into_iter().rev().find(|(scale, _)| count as f64 >= *scale).unwrap_or(UNITS[0]);
    format!("{:.*} {unit}", significant(count as f64 / scale), count as f64 / scale)
}

/// A rate in decimal units: `236 GFLOP/s`. `half_width` trims it.
pub fn rate(per_second: f64, half_width: Option<f64>, unit: &str) -> String {
    let scaled =
        scaled(per_second, half_width, &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")]);
    format!("{scaled}{unit}/s")
}

fn scaled(value: f64, half_width: Option<f64>, units: &[(f64, &str)]) -> String {
    let (scale, unit) = units.iter().rev().find(|(scale, _)| value.abs() >= *scale).unwrap_or(&units[0]);
    let shown = value / scale;
    let decimals = match half_width {
        Some(width) => decimals(Some(width / scale)).min(3),
        None => significant(shown),
    };
    format!("{shown:.decimals$} {unit}")
}

/// Decimals that leave three significant digits of a number of at least one.
fn significant(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_decides_the_digits() {
        assert_eq!(decimals(Some(0.03)), 2);
        assert_eq!(decimals(Some(0.3)), 1);
        assert_eq!(decimals(Some(4.0)), 0);
        assert_eq!(decimals(Some(1e-9)), 6);
        assert_eq!(decimals(None), 3);
        assert_eq!(decimals(Some(0.0)), 3);
    }

    #[test]
    fn units_follow_the_size() {
        assert_eq!(time(1_234_567.0, Some(12_345.0)), "1.23 ms");
        assert_eq!(time(1_234_567.0, Some(234_567.0)), "1.2 ms");
        assert_eq!(time(812.4, None), "812 ns");
        assert_eq!(time(2.5e9, None), "2.50 s");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1_572_864), "1.50 MiB");
        assert_eq!(rate(2.36e11, None, "FLOP"), "236 GFLOP/s");
        assert_eq!(rate(12.0, None, "samples"), "12.0 samples/s");
    }
}
