//! The meaning of a figure, read from its name, which ends in its unit: `mean_ns`, `tokens_per_s`,
//! `top1_percent`.

use std::ops::RangeInclusive;

use overdrive_bench::verdicts::{MEAN, P95, P99};

/// A ratio beyond this, either way, is a regression or an improvement; within it is the same.
pub const LIMIT: f64 = 1.05;
/// Limit for the interval of mean and tails, up to which a session may pass. They scatter more than
/// the median.
pub const TAIL_LIMIT: f64 = 1.25;
/// Allowed growth of a size, loss or perplexity that is the same in every process.
const EXACT_GROWTH: f64 = 0.01;

/// The better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Times, sizes, losses.
    Lower,
    /// Rates, accuracies.
    Higher,
    /// The name does not say.
    Unknown,
}

/// On which scale two figures are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// By their ratio.
    Ratio,
    /// By their difference, for accuracies and similarities. This much is allowed.
    Difference(f64),
}

/// How a figure is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// The better direction.
    pub better: Better,
    /// How it is compared.
    pub scale: Scale,
    /// The share by which it may get worse where every process of a side says the same.
    pub exact_share: f64,
    /// Whether a median stands beside it, which judges more strictly.
    pub is_tail: bool,
}

const LOWER: &[&str] = &[
    "bits",
    "byte",
    "bytes",
    "drop",
    "dropped",
    "energy",
    "error",
    "errors",
    "failure",
    "failures",
    "fault",
    "faults",
    "joules",
    "latency",
    "loss",
    "memory",
    "miss",
    "misses",
    "ms",
    "ns",
    "perplexity",
    "ppl",
    "s",
    "sec",
    "second",
    "seconds",
    "time",
    "us",
    "wer",
];
const ACCURACIES: &[&str] =
    &["acc", "accuracy", "agreement", "auc", "cosine", "f1", "precision", "recall", "top1", "top5"];
const HIGHER: &[&str] = &[
    "bandwidth",
    "bleu",
    "flops",
    "fps",
    "gflops",
    "hits",
    "ips",
    "qps",
    "rate",
    "rouge",
    "rps",
    "score",
    "speed",
    "speedup",
    "tflops",
    "throughput",
    "tps",
];
/// Units that a rate is counted in.
const PER: &[&str] =
    &["ms", "us", "ns", "s", "sec", "second", "min", "minute", "hour", "joule", "watt"];
/// Ends of names that belong to another figure: its interval, its count.
const COMPANIONS: &[&str] = &[".low", ".high", ".n"];

/// How the figure of this name is judged; `None` if it belongs to another one.
pub fn metric(name: &str) -> Option<Metric> {
    if COMPANIONS.iter().any(|end| name.ends_with(end)) {
        return None;
    }
    let spelt = name.to_lowercase().replace('/', "_per_");
    let words: Vec<&str> =
        spelt.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let (of, per) = match words.iter().position(|word| *word == "per") {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (&words[..], &[][..]),
    };
    let any = |known: &[&str]| of.iter().any(|word| known.contains(word));
    let is_rate = per.first().is_some_and(|word| PER.contains(word));
    let plain =
        |better| Metric { better, scale: Scale::Ratio, exact_share: LIMIT - 1.0, is_tail: false };
    Some(if matches!(name, MEAN | P95 | P99) {
        Metric { is_tail: true, ..plain(Better::Lower) }
    } else if is_rate {
        plain(Better::Higher)
    } else if any(&["byte", "bytes", "loss", "perplexity"]) {
        Metric { exact_share: EXACT_GROWTH, ..plain(Better::Lower) }
    } else if any(LOWER) {
        plain(Better::Lower)
    } else if any(ACCURACIES) {
        let allowed = if words.last() == Some(&"percent") { 0.5 } else { 0.005 };
        Metric { scale: Scale::Difference(allowed), ..plain(Better::Higher) }
    } else if any(HIGHER) {
        plain(Better::Higher)
    } else {
        plain(Better::Unknown)
    })
}

impl Metric {
    /// A figure on the scale of its comparison, larger being worse: its logarithm, or itself.
    /// `None` where it has none.
    pub(super) fn badness(&self, value: f64) -> Option<f64> {
        let sign = if self.better == Better::Higher { -1.0 } else { 1.0 };
        match self.scale {
            Scale::Ratio => (value > 0.0).then(|| sign * value.ln()),
            Scale::Difference(_) => Some(sign * value),
        }
    }

    /// The range of badness that is the same.
    pub(super) fn same(&self) -> RangeInclusive<f64> {
        let limit = match self.scale {
            Scale::Ratio => LIMIT.ln(),
            Scale::Difference(allowed) => allowed,
        };
        -limit..=limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_has_its_direction() {
        let better = |name: &str| metric(name).map(|metric| metric.better);
        for name in [
            "median_ns",
            "file_bytes",
            "bytes_per_token",
            "validation_loss",
            "error_rate",
            "latency_ms",
        ] {
            assert_eq!(better(name), Some(Better::Lower), "{name}");
        }
        for name in [
            "time_s",
            "joules_per_token",
            "test_bits_per_byte",
            "Time (ms)",
            "miss_rate",
            "seconds_per_step",
        ] {
            assert_eq!(better(name), Some(Better::Lower), "{name}");
        }
        for name in [
            "tokens_per_s",
            "rate",
            "tokens/s",
            "items_per_second",
            "throughput",
            "FPS",
            "top1_percent",
        ] {
            assert_eq!(better(name), Some(Better::Higher), "{name}");
        }
        for name in
            ["bytes_per_s", "mean_cosine", "accuracy", "bandwidth", "tokens_per_joule", "hit_rate"]
        {
            assert_eq!(better(name), Some(Better::Higher), "{name}");
        }
        assert_eq!(better("tokens"), Some(Better::Unknown));
        assert_eq!(better("top1_percent.low"), None);
    }

    #[test]
    fn worse_is_larger_on_every_scale() {
        let badness = |name: &str, value| metric(name).unwrap().badness(value);
        assert!(badness("mean_ns", 2.0) > badness("mean_ns", 1.0));
        assert!(badness("tokens_per_s", 2.0) < badness("tokens_per_s", 1.0));
        assert_eq!(badness("top1_percent", 90.0), Some(-90.0));
        assert_eq!(badness("file_bytes", 0.0), None);
    }
}
