//! As many digits as the interval supports: `1.93 [1.90, 1.96]`, never `1.9287 [1.8991, 1.9612]`.

use crate::statistics::Summary;

const TIME_UNITS: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
const DECIMAL_UNITS: [(f64, &str); 5] =
    [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];

/// Decimals that put the last printed digit at the leading digit of `half_width`; three where
/// nothing is known of it, six at most.
pub fn decimals(half_width: Option<f64>) -> usize {
    match half_width {
        Some(width) if width > 0.0 && width.is_finite() => {
            (-width.log10().floor()).clamp(0.0, 6.0) as usize
        }
        _ => 3,
    }
}

/// A time in the unit that leaves one to three digits before the point: `1.23 ms`. `half_width_ns`
/// trims it.
pub fn time(ns: f64, half_width_ns: Option<f64>) -> String {
    scaled(ns, half_width_ns, &TIME_UNITS)
}

/// A median with its interval in one unit: `1.23 ms [1.22, 1.25]`.
pub fn time_of(summary: &Summary) -> String {
    let Some(interval) = summary.median_interval else { return time(summary.median_ns, None) };
    let half_width = (interval.high_ns - interval.low_ns) / 2.0;
    let (scale, unit) = unit_of(summary.median_ns, &TIME_UNITS);
    let digits = if half_width > 0.0 {
        decimals(Some(half_width / scale)).min(3)
    } else {
        significant(summary.median_ns / scale)
    };
    let [median, low, high] =
        [summary.median_ns, interval.low_ns, interval.high_ns].map(|ns| ns / scale);
    format!("{median:.digits$} {unit} [{low:.digits$}, {high:.digits$}]")
}

/// A number of things, in groups of three digits: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits are ASCII"))
        .collect();
    groups.join(",")
}

/// A size in binary units: `1.50 MiB`; exact below 1 KiB.
pub fn bytes(count: u64) -> String {
    const UNITS: [(f64, &str); 4] =
        [(1024.0, "KiB"), (1048576.0, "MiB"), (1073741824.0, "GiB"), (1099511627776.0, "TiB")];
    if count < 1024 {
        return format!("{count} B");
    }
    let (scale, unit) =
        UNITS.into_iter().rev().find(|(scale, _)| count as f64 >= *scale).unwrap_or(UNITS[0]);
    format!("{:.*} {unit}", significant(count as f64 / scale), count as f64 / scale)
}

/// Floating-point operations in decimal units: `8.60 GFLOP`.
pub fn flops(count: u64) -> String {
    format!("{}FLOP", scaled(count as f64, None, &DECIMAL_UNITS))
}

/// A rate in decimal units: `236 GFLOP/s`. `half_width` trims it.
pub fn rate(per_second: f64, half_width: Option<f64>, unit: &str) -> String {
    format!("{}{unit}/s", scaled(per_second, half_width, &DECIMAL_UNITS))
}

fn scaled(value: f64, half_width: Option<f64>, units: &[(f64, &str)]) -> String {
    let (scale, unit) = unit_of(value, units);
    let shown = value / scale;
    let decimals = match half_width {
        Some(width) => decimals(Some(width / scale)).min(3),
        None => significant(shown),
    };
    format!("{shown:.decimals$} {unit}")
}

/// The largest unit that leaves at least one before the point.
fn unit_of<'u>(value: f64, units: &[(f64, &'u str)]) -> (f64, &'u str) {
    *units.iter().rev().find(|(scale, _)| value.abs() >= *scale).unwrap_or(&units[0])
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
    fn a_median_stands_with_its_interval_in_one_unit() {
        let spans: Vec<f64> = (0..20).map(|i| 999_000.0 + 1_000.0 * f64::from(i)).collect();
        let sorted = crate::statistics::Sorted::new(&spans).unwrap();
        assert_eq!(time_of(&Summary::of(&sorted)), "1.008 ms [1.004, 1.013]");
        let few = crate::statistics::Sorted::new(&spans[..3]).unwrap();
        assert_eq!(time_of(&Summary::of(&few)), "1.00 ms");
    }

    #[test]
    fn units_follow_the_size() {
        assert_eq!(time(1_234_567.0, Some(12_345.0)), "1.23 ms");
        assert_eq!(time(1_234_567.0, Some(234_567.0)), "1.2 ms");
        assert_eq!(time(812.4, None), "812 ns");
        assert_eq!(time(2.5e9, None), "2.50 s");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1_572_864), "1.50 MiB");
        assert_eq!(flops(8_600_000_000), "8.60 GFLOP");
        assert_eq!(rate(2.36e11, None, "FLOP"), "236 GFLOP/s");
        assert_eq!(rate(12.0, None, "samples"), "12.0 samples/s");
    }
}
