//! Reads what a process wrote.
//!
//! Two texts are read: results as Overdrive writes them, and a short form that any program can
//! print,
//!
//! ```json
//! {"overdrive_samples": 1, "cases": [
//!   {"name": "bert b8", "times_ns": [4211000, 4198000],
//!    "quantities": {"top1_percent": 71.2}, "agrees": true}]}
//! ```
//!
//! in which `times_ns` are times per call, at least five, warm-up left out. Either of `times_ns`
//! and `quantities` may be left out; `agrees` says whether outputs were right, and `failed: "why"`
//! stands in place of times.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::observation::{self, times};
use overdrive_bench::failure::Failure;
use overdrive_bench::json::{JsonError, from_json};
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::statistics::Sorted;
use overdrive_bench::verdicts::{MEAN, MEDIAN, Observations, Observed, P95, P99};

/// Fewest times a case of the short form may have: fewer make a poor median.
const FEWEST_TIMES: usize = 5;

/// The observations of each case in `results`.
pub fn observations(results: &Results) -> Observations {
    let observed = |record: &Record| match record.outcome.failure() {
        Some(failure) => Err(failure.clone()),
        None => {
            observation::of(record.outcome.measurement().expect("what is no failure was measured"))
        }
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
        /// The fault.
        reason: String,
    },
}

/// Reads either form; the results are absent for the short one.
///
/// # Errors
/// The fault of the text, with line and column where there is one.
pub fn read(text: &str) -> Result<(Observations, Option<Results>), Unreadable> {
    // Cheap, and right wherever it matters: results are never mistaken, since a key of this name is
    // not theirs.
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
                let figures =
                    figures(&times_ns, quantities).map_err(|reason| refuse(&name, reason))?;
                Ok(Observed { figures, agrees: agrees.is_some(), ..Observed::default() })
            }
        };
        if observations.insert(name.clone(), observed).is_some() {
            return Err(refuse(&name, "it is there twice; names are unique".to_owned()));
        }
    }
    Ok(observations)
}

/// The figures of a case of the short form.
fn figures(
    times_ns: &[f64],
    quantities: BTreeMap<String, f64>,
) -> Result<BTreeMap<String, f64>, String> {
    if let Some(name) =
        [MEDIAN, MEAN, P95, P99].into_iter().find(|name| quantities.contains_key(*name))
    {
        return Err(format!(
            "the quantity `{name}` is what the gate computes from `times_ns`; rename it"
        ));
    }
    if let Some((name, value)) = quantities.iter().find(|(_, value)| !value.is_finite()) {
        return Err(format!("the quantity `{name}` is {value}, expected a number"));
    }
    if times_ns.is_empty() && !quantities.is_empty() {
        return Ok(quantities);
    }
    if times_ns.len() < FEWEST_TIMES {
        return Err(format!("{} times, expected at least {FEWEST_TIMES}", times_ns.len()));
    }
    let sorted = Sorted::new(times_ns)
        .filter(|sorted| sorted.min() > 0.0)
        .ok_or("a time is not a positive number of nanoseconds")?;
    let tails = [sorted.tail(0.95), sorted.tail(0.99)];
    Ok(quantities.into_iter().chain(times(sorted.median(), sorted.mean(), tails)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::failure::FailureKind;
    use overdrive_bench::json::to_json;
    use overdrive_bench::testing::{record, results};

    #[test]
    fn results_are_read_back_as_medians() {
        let mut found = results();
        found.records.push(record("compile", &[1000, 1000, 1000, 1000, 1000, 8000]));
        let mut failed = record("eager", &[1000; 6]);
        failed.outcome = Failure::failed("no such library").into();
        found.records.push(failed);
        let (observations, read_back) = read(&to_json(&found)).unwrap();
        assert_eq!(read_back.unwrap(), found);
        let seen = observations["study: work x=1: cpu compile f32 t1"].as_ref().unwrap();
        let mean = (5.0 * 1000.0 + 8000.0) / 6.0;
        assert_eq!((seen.figure(MEDIAN), seen.figure(MEAN)), (Some(1000.0), Some(mean)));
        assert!(seen.agrees && seen.figure(P95).is_none());
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
        assert_eq!(
            (a.figure(MEDIAN), a.figure("file_bytes"), a.agrees),
            (Some(3.0), Some(10.0), false)
        );
        assert_eq!(found["b"].as_ref().unwrap_err().kind, FailureKind::Incorrect);
        assert_eq!(found["c"].as_ref().unwrap_err().reason, "no GPU");
    }

    #[test]
    fn tails_have_their_numbers_of_samples_and_times_may_be_left_out() {
        let times: Vec<String> = (1..=300).map(|ns| ns.to_string()).collect();
        let said = format!(r#"{{"name": "a", "times_ns": [{}], "agrees": true}}"#, times.join(","));
        let found = short(&said).unwrap();
        let a = found["a"].as_ref().unwrap();
        assert!(a.agrees && a.figure(P95) > Some(280.0) && a.figure(P99) > Some(290.0));
        let found = short(r#"{"name": "a", "quantities": {"tokens_per_s": 10}}"#).unwrap();
        assert_eq!(found["a"].as_ref().unwrap().figure("tokens_per_s"), Some(10.0));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (cases, word) in [
            (r#"{"name": "a"}"#, "0 times, expected at least 5"),
            (r#"{"name": "a", "quantities": {"mean_ns": 10}}"#, "rename it"),
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
            read("{\"overdrive_samples\": 9, \"cases\": []}")
                .unwrap_err()
                .to_string()
                .contains("expected 1")
        );
        assert!(read("{").unwrap_err().to_string().contains("not Overdrive results"));
    }
}
