//! One thing that the records say, and what it is about.

use std::fmt;

use serde::Serialize;

use crate::judged::{JudgedResults, JudgedRow};

/// A sentence and the records behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its topic.
    pub topic: Topic,
    /// The sentence; names of cases stand in backticks.
    pub sentence: String,
    /// Ids of the cases that it follows from, never none.
    pub records: Vec<String>,
}

/// Topics of findings, in the order of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// A case whose outputs disagree with the reference.
    Incorrect,
    /// The fastest configuration of a workload.
    Latency,
    /// The size and configuration that handle most per second.
    Throughput,
    /// The configuration that needs least memory.
    Memory,
    /// The most accurate configuration, and the smallest file.
    Quality,
    /// A model that is worse than the one it was made from.
    QualityLost,
    /// A compressed model that is not smaller.
    NotCompressed,
    /// A case that the regression gate found worse than an earlier program.
    Regressed,
    /// A variant that is slower than what it was compared with.
    Slower,
    /// A device that waits for launches.
    LaunchBound,
    /// Samples that speak against being believed.
    Doubt,
    /// Other cases without a figure, and why.
    Stopped,
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incorrect => "incorrect",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::Quality => "quality",
            Self::QualityLost => "quality lost",
            Self::NotCompressed => "not compressed",
            Self::Regressed => "regressed",
            Self::Slower => "slower",
            Self::LaunchBound => "launch-bound",
            Self::Doubt => "doubt",
            Self::Stopped => "no figure",
        })
    }
}

impl Finding {
    /// A sentence that follows from these rows, each named once.
    pub(super) fn new<'r, 'a: 'r>(
        topic: Topic,
        sentence: String,
        rows: impl IntoIterator<Item = &'r JudgedRow<'a>>,
    ) -> Self {
        let mut records: Vec<String> = rows.into_iter().map(|row| row.id.clone()).collect();
        let mut seen = std::collections::BTreeSet::new();
        records.retain(|id| seen.insert(id.clone()));
        assert!(!records.is_empty(), "a sentence follows from records or is not said");
        Self { topic, sentence, records }
    }

    /// The anchors of its records on the page.
    pub(crate) fn anchors(&self, judged: &JudgedResults<'_>) -> Vec<String> {
        let anchor = |id: &String| {
            let row = judged
                .find(id)
                .expect("a finding names records of the results that it follows from");
            row.anchor.clone()
        };
        self.records.iter().map(anchor).collect()
    }
}
