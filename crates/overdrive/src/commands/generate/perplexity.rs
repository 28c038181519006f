//! The perplexity of windows of a text, and the loss of one way of reading them over another.

use overdrive::bench::statistics::Sorted;

/// Perplexity of windows of one length.
pub(super) fn perplexity(windows: &[f64]) -> f64 {
    (windows.iter().sum::<f64>() / windows.len() as f64).exp()
}

/// Perplexity of one way over another, in percent.
pub(super) struct Loss {
    pub(super) percent: f64,
    /// With 95 % confidence; none of fewer than six windows.
    pub(super) interval_percent: Option<[f64; 2]>,
}

/// The loss of windows over the same windows read otherwise, and its interval in words.
pub(super) fn compared(windows: &[f64], before: &[f64]) -> (Loss, String) {
    let differences: Vec<f64> =
        windows.iter().zip(before).map(|(one, other)| one - other).collect();
    let percent = |nats: f64| 100.0 * nats.exp_m1();
    let interval = Sorted::new(&differences).and_then(|sorted| sorted.mean_interval());
    let interval = interval.map(|interval| [percent(interval.low), percent(interval.high)]);
    let told = interval.map_or(String::new(), |[low, high]| {
        format!(" [{low:+.3}, {high:+.3}] with 95 % confidence")
    });
    let percent = 100.0 * (perplexity(windows) / perplexity(before) - 1.0);
    (Loss { percent, interval_percent: interval }, told)
}
