//! The figures of another tool for a case: a summary, or samples that were not taken under our
//! protocol.
//!
//! They go through the same gate as our own samples, as far as the kept figures allow. They never
//! go into a ratio: nobody compared the outputs with a reference, and a summary cannot give an
//! interval. Samples are never made up from a mean and a deviation.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::statistics::Sorted;
use crate::status::{self, Status};

/// Times per call as another tool reports them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reported {
    /// The tool: `criterion.rs`, `nvbench`.
    pub tool: String,
    /// The figures that it kept.
    pub kept: Kept,
    /// Number of calls or samples behind the figures; absent if the tool does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Mean time per call.
    pub mean_ns: f64,
    /// Median time per call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ns: Option<f64>,
    /// Standard deviation of the times per call. It is taken for that of a population unless the
    /// tool says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_deviation_ns: Option<f64>,
    /// Shortest time per call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    /// Longest time per call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    /// Every sample's time per call in the order taken; empty unless the tool kept them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples_ns: Vec<f64>,
}

/// The part of its timings that a tool kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// Mean and similar figures.
    Summary,
    /// Every sample.
    Samples,
    /// The events of a traced run. Tracing costs time of its own, so it is no latency.
    Trace,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Summary => "a summary without samples",
            Self::Samples => "samples under another protocol",
            Self::Trace => "a traced run",
        })
    }
}

impl Reported {
    /// A mean alone; fields that the tool also gives are set afterwards.
    pub fn summary(tool: impl Into<String>, mean_ns: f64) -> Self {
        Self {
            tool: tool.into(),
            kept: Kept::Summary,
            count: None,
            mean_ns,
            median_ns: None,
            standard_deviation_ns: None,
            min_ns: None,
            max_ns: None,
            samples_ns: Vec::new(),
        }
    }

    /// Samples in the order taken.
    ///
    /// # Errors
    /// When there are none, or one is not a positive time.
    pub fn samples(
        tool: impl Into<String>,
        kept: Kept,
        samples_ns: Vec<f64>,
    ) -> Result<Self, Failure> {
        let sorted = Sorted::new(&samples_ns)
            .ok_or_else(|| Failure::failed("there are no samples, or one is not a number"))?;
        let variation = sorted.coefficient_of_variation();
        let reported = Self {
            kept,
            count: Some(sorted.count() as u64),
            median_ns: Some(sorted.median()),
            standard_deviation_ns: Some(variation * sorted.mean()),
            min_ns: Some(sorted.min()),
            max_ns: Some(sorted.max()),
            samples_ns,
            ..Self::summary(tool, sorted.mean())
        };
        reported.check().map(|()| reported)
    }

    /// Whether the figures can be times at all.
    ///
    /// # Errors
    /// The figure that cannot: zero, negative, not a number, or a mean outside of its own range.
    pub fn check(&self) -> Result<(), Failure> {
        let times = [
            ("mean", Some(self.mean_ns)),
            ("median", self.median_ns),
            ("shortest time", self.min_ns),
            ("longest time", self.max_ns),
        ];
        for (name, time_ns) in times {
            if let Some(time_ns) = time_ns.filter(|&ns| !(ns > 0.0 && ns.is_finite())) {
                let why = "no call takes that: it did not run, or was not timed";
                return Err(Failure::failed(format!(
                    "{} reports a {name} of {time_ns} ns; {why}",
                    self.tool
                )));
            }
        }
        let deviation = self.standard_deviation_ns.unwrap_or(0.0);
        // A rounded mean may lie a little beyond a rounded extreme.
        let slack = 1e-6 * self.mean_ns;
        let within = self.min_ns.is_none_or(|min| min <= self.mean_ns + slack)
            && self.max_ns.is_none_or(|max| max >= self.mean_ns - slack);
        if !(deviation >= 0.0 && deviation.is_finite() && within) || self.count == Some(0) {
            return Err(Failure::failed(format!(
                "{} reports figures that contradict each other: mean {} ns, deviation {deviation} \
                 ns, from {:?} to {:?} ns",
                self.tool, self.mean_ns, self.min_ns, self.max_ns
            )));
        }
        Ok(())
    }

    /// Reasons to doubt the figures, by the limits of [`status`].
    pub fn gate(&self) -> Vec<Status> {
        if !self.samples_ns.is_empty() {
            return status::of_times(&self.samples_ns, 0.0);
        }
        let count = self.count.and_then(|count| usize::try_from(count).ok());
        let found = count.and_then(|count| {
            let share = self.max_ns.map_or(0.0, |max| max / (count as f64 * self.mean_ns));
            let variation = self.standard_deviation_ns.unwrap_or(0.0) / self.mean_ns;
            status::dominated(count, share, variation)
        });
        found.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::StatusKind;

    fn ten(mean_ms: f64, deviation_ms: f64, min_ms: f64, max_ms: f64) -> Reported {
        Reported {
            count: Some(10),
            standard_deviation_ns: Some(deviation_ms * 1e6),
            min_ns: Some(min_ms * 1e6),
            max_ns: Some(max_ms * 1e6),
            ..Reported::summary("a tool", mean_ms * 1e6)
        }
    }

    #[test]
    fn mean_deviation_and_count_betray_one_large_sample() {
        let slow = ten(0.762, 2.05, 0.04, 6.92);
        assert_eq!(slow.gate()[0].kind, StatusKind::OneSampleDominates);
        assert!(
            slow.gate()[0].detail.contains("91 % of their sum, variation 269 % of at most 300 %")
        );
        let without_the_largest = Reported { max_ns: None, ..slow };
        assert_eq!(without_the_largest.gate()[0].kind, StatusKind::OneSampleDominates);
        assert!(ten(0.049, 0.01, 0.04, 0.07).gate().is_empty());
    }

    #[test]
    fn samples_are_judged_in_their_order() {
        let mut samples: Vec<f64> = (0..20).map(|i| 1000.0 + f64::from(i)).collect();
        assert!(
            Reported::samples("a tool", Kept::Samples, samples.clone()).unwrap().gate().is_empty()
        );
        samples[0] = 2000.0;
        let cold = Reported::samples("a tool", Kept::Samples, samples.clone()).unwrap();
        assert_eq!(cold.gate()[0].kind, StatusKind::ColdFirstSample);
        samples.reverse();
        assert!(Reported::samples("a tool", Kept::Samples, samples).unwrap().gate().is_empty());
    }

    #[test]
    fn what_cannot_be_a_time_is_refused() {
        for mean in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Reported::summary("a tool", mean).check().is_err(), "{mean}");
        }
        assert!(ten(1.0, 0.1, 2.0, 3.0).check().is_err(), "the mean is below the shortest");
        assert!(ten(1.0, -0.1, 0.5, 3.0).check().is_err());
        assert!(Reported { count: Some(0), ..ten(1.0, 0.1, 0.5, 3.0) }.check().is_err());
        assert!(Reported::samples("a tool", Kept::Samples, vec![]).is_err());
        assert!(Reported::samples("a tool", Kept::Samples, vec![1.0, 0.0]).is_err());
    }
}
