//! The summary of a series of times, as reports show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Interval, Sorted};

/// The summary of a series of times per call, in nanoseconds. A pure function of the samples; a
/// results file whose summaries do not follow from its samples is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The headline.
    pub median_ns: f64,
    /// Order-statistic interval of the median; absent below six samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_interval: Option<MedianInterval>,
    /// Arithmetic mean of every sample.
    pub mean_ns: f64,
    /// Fastest sample.
    pub min_ns: f64,
    /// Slowest sample.
    pub max_ns: f64,
    /// Sample standard deviation; absent for a single sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_deviation_ns: Option<f64>,
    /// Median absolute deviation from the median, unscaled.
    pub median_absolute_deviation_ns: f64,
    /// Interquartile range over median.
    pub relative_interquartile_range: f64,
    /// Mean of the samples within Tukey's 1.5-range fences.
    pub tukey_trimmed_mean_ns: f64,
    /// 90th percentile, from 29 samples on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_ns: Option<f64>,
    /// 95th percentile, from 59 samples on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_ns: Option<f64>,
    /// 99th percentile, from 299 samples on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
}

/// The interval of the median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MedianInterval {
    /// Lower end.
    pub low_ns: f64,
    /// Upper end.
    pub high_ns: f64,
    /// Exact confidence, at least 0.95.
    pub confidence: f64,
}

impl Summary {
    /// Summarises times per call in nanoseconds.
    pub fn of(times_ns: &Sorted) -> Self {
        let interval = |i: Interval| MedianInterval {
            low_ns: i.low,
            high_ns: i.high,
            confidence: i.confidence,
        };
        Self {
            count: times_ns.count(),
            median_ns: times_ns.median(),
            median_interval: times_ns.median_interval().map(interval),
            mean_ns: times_ns.mean(),
            min_ns: times_ns.min(),
            max_ns: times_ns.max(),
            standard_deviation_ns: times_ns.standard_deviation(),
            median_absolute_deviation_ns: times_ns.median_absolute_deviation(),
            relative_interquartile_range: times_ns.relative_interquartile_range(),
            tukey_trimmed_mean_ns: times_ns.tukey_trimmed_mean(),
            p90_ns: times_ns.tail(0.90),
            p95_ns: times_ns.tail(0.95),
            p99_ns: times_ns.tail(0.99),
        }
    }

    /// Half-width of the median's interval over the median; `None` without an interval.
    pub fn relative_half_width(&self) -> Option<f64> {
        self.median_interval.map(|i| (i.high_ns - i.low_ns) / 2.0 / self.median_ns)
    }
}
