//! What one process said of each case: the gate needs a median, the clock behind it, and what is exact.
//!
//! Two texts are read: results as Overdrive writes them, and a short form that any program can print,
//!
//! ```json
//! {"overdrive_samples": 1, "cases": [
//!   {"name": "bert b8", "times_ns": [4211000, 4198000], "quantities": {"top1_percent": 71.2}, "agrees": true}]}
//! ```
//!
//! in which `times_ns` are times per call, at least five, warm-up left out. `quantities` may be left out;
//! `agrees: false` says that outputs were wrong, and `failed: "why"` stands in place of times.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::outcome::Failure;
use crate::record::{Measurement, Record};
use crate::report::{JsonError, from_json};
use crate::results::Results;
use crate::statistics::Sorted;
use crate::status::StatusKind;

/// Fewest times a case of the short form may have: fewer make a poor median.
const FEWEST_TIMES: usize = 5;

/// What one process said, by case.
pub type Observations = BTreeMap<String, Result<Observed, Failure>>;

/// What one process said of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Median time per call; absent where only exact quantities were measured.
    pub median_ns: Option<f64>,
    /// Median device cycles per call, where they were counted.
    pub cycles: Option<f64>,
    /// Findings about the samples that bear on a comparison of processes.
    pub statuses: BTreeSet<StatusKind>,
    /// Exact quantities by name.
    pub exact: BTreeMap<String, f64>,
}

impl Observed {
    /// A bare median.
    pub fn of_time(median_ns: f64) -> Self {
        Self { median_ns: Some(median_ns), cycles: None, statuses: BTreeSet::new(), exact: BTreeMap::new() }
    }

    /// The device's clock during the process, in cycles per nanosecond.
    pub fn clock_ghz(&self) -> Option<f64> {
        Some(self.cycles? / self.median_ns?)
    }

    fn of(measurement: &Measurement) -> Result<Self, Failure> {
        let statuses: BTreeSet<StatusKind> = measurement.statuses.iter().map(|status| status.kind).collect();
        // One sample out of line leaves a process's median alone; what follows says that the median is wrong.
        let disbelieved = measurement
            .statuses
            .iter()
            .find(|status| matches!(status.kind, StatusKind::Invalid | StatusKind::Suspect));
        if let Some(status) = disbelieved {
            return Err(Failure::failed(status.to_string()));
        }
        let series = measurement.latency.as_ref();
        let cycles = series.and_then(|series| {
            let calls = series.conditions.calls_per_sample as f64;
            let cycles: Option<Vec<f64>> =
                series.samples.iter().map(|sample| Some(sample.cycles? as f64 / calls)).collect();
            Some(Sorted::new(&cycles?)?.median())
        });
        let mut exact = measurement.quantities.clone();
        if let Some(bytes) = measurement.memory.as_ref().and_then(|memory| memory.planned_arena_bytes) {
            exact.insert("planned_arena_bytes".to_owned(), bytes as f64);
        }
        Ok(Self { median_ns: series.map(|series| series.summary.median_ns), cycles, statuses, exact })
    }
}

/// What `results` say of each of their cases.
pub fn observations(results: &Results) -> Observations {
    let observed = |record: &Record| match record.outcome.failure() {
        Some(failure) => Err(failure.clone()),
        None => Observed::of(record.outcome.measurement().expect("what is no failure was measured")),
    };
    results.records.iter().map(|record| (record.case.id(), observed(record))).collect()
}

/// Why a file that a process wrote is not understood.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Neither results nor the short form.
    #[error(transparent)]
    Results(#[from] JsonError),
    /// The short form, but not in this shape.
    #[error("not a list of samples: {0}; docs/regression.md shows the form")]
    Samples(#[from] serde_json::Error),
    /// The short form with a case that cannot be used.
    #[error("case `{case}`: {reason}")]
    Case {
        /// Its name.
        case: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads either form; the results are absent for the short one.
///
/// # Errors
/// What is wrong with the text, with line and column where there is one.
pub fn read(text: &str) -> Result<(Observations, Option<Results>), Unreadable> {
    // Cheap, and right wherever it matters: results are never mistaken, since a key of this name is not theirs.
    if text.contains("\"overdrive_samples\"") {
        return Ok((read_samples(text)?, None));
    }
    let results = from_json(text)?;
    Ok((observations(&results), Some(results)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Samples {
    overdrive_samples: u32,
    cases: Vec<SampledCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SampledCase {
    name: String,
    #[serde(default)]
    times_ns: Vec<f64>,
    #[serde(default)]
    quantities: BTreeMap<String, f64>,
    agrees: Option<bool>,
    failed: Option<String>,
}

fn read_samples(text: &str) -> Result<Observations, Unreadable> {
    let samples: Samples = serde_json::from_str(text)?;
    let refuse = |case: &str, reason: String| Unreadable::Case { case: case.to_owned(), reason };
    if samples.overdrive_samples != 1 {
        let reason = format!("version {} of the form, expected 1", samples.overdrive_samples);
        return Err(refuse("overdrive_samples", reason));
    }
    let mut observations = Observations::new();
    for case in samples.cases {
        let SampledCase { name, times_ns, quantities, agrees, failed } = case;
        let observed = match failed {
            Some(reason) => Err(Failure::failed(reason)),
            None if agrees == Some(false) => {
                Err(Failure::incorrect("the program says that its outputs are wrong"))
            }
            None => {
                let median_ns = median(&times_ns).map_err(|reason| refuse(&name, reason))?;
                Ok(Observed { exact: quantities, ..Observed::of_time(median_ns) })
            }
        };
        if observations.insert(name.clone(), observed).is_some() {
            return Err(refuse(&name, "it is there twice; names are unique".to_owned()));
        }
    }
    Ok(observations)
}

fn median(times_ns: &[f64]) -> Result<f64, String> {
    if times_ns.len() < FEWEST_TIMES {
        return Err(format!("{} times, expected at least {FEWEST_TIMES}", times_ns.len()));
    }
    match Sorted::new(times_ns) {
        Some(sorted) if sorted.min() > 0.0 => Ok(sorted.median()),
        _ => Err("a time is not a positive number of nanoseconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::FailureKind;
    use crate::report::to_json;
    use crate::testing::{record, results};

    #[test]
    fn results_are_read_back_as_medians() {
        let mut found = results();
        found.records.push(record("compile", &[1000, 1000, 1000, 1000, 1000, 8000]));
        let mut failed = record("eager", &[1000; 6]);
        failed.outcome = Failure::failed("no such library").into();
        found.records.push(failed);
        let (observations, read_back) = read(&to_json(&found)).unwrap();
        assert_eq!(read_back.unwrap(), found);
        assert_eq!(
            observations["study: work x=1: cpu compile f32 t1"].as_ref().unwrap().median_ns,
            Some(1000.0)
        );
        let failure = observations["study: work x=1: cpu eager f32 t1"].as_ref().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Failed);
    }

    fn short(cases: &str) -> Result<Observations, String> {
        read(&format!("{{\"overdrive_samples\": 1, \"cases\": [{cases}]}}"))
            .map(|(observations, _)| observations)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_short_form_needs_no_knowledge_of_ours() {
        let found = short(
            r#"{"name": "a", "times_ns": [3, 1, 2, 5, 4], "quantities": {"file_bytes": 10}},
               {"name": "b", "agrees": false, "times_ns": []}, {"name": "c", "failed": "no GPU"}"#,
        )
        .unwrap();
        let a = found["a"].as_ref().unwrap();
        assert_eq!((a.median_ns, a.exact["file_bytes"]), (Some(3.0), 10.0));
        assert_eq!(found["b"].as_ref().unwrap_err().kind, FailureKind::Incorrect);
        assert_eq!(found["c"].as_ref().unwrap_err().reason, "no GPU");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (cases, word) in [
            (r#"{"name": "a", "times_ns": [1, 2]}"#, "2 times, expected at least 5"),
            (r#"{"name": "a", "times_ns": [1, 2, 3, 4, 0]}"#, "positive"),
            (r#"{"name": "a", "times": [1, 2, 3, 4, 5]}"#, "unknown field `times`"),
            (r#"{"name": "a", "failed": "x"}, {"name": "a", "failed": "x"}"#, "twice"),
            (r#"{"name": "a", "times_ns": [1, 2"#, "line 1"),
        ] {
            let said = short(cases).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
        assert!(
            read("{\"overdrive_samples\": 9, \"cases\": []}").unwrap_err().to_string().contains("expected 1")
        );
        assert!(read("{").unwrap_err().to_string().contains("not Overdrive results"));
    }
}
