//! The one file that a run leaves: everything else is drawn from it.

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ceilings::Ceiling;
use crate::environment::{Environment, Revision};
use crate::exit::Exit;
use crate::failure::FailureKind;
use crate::ladder::LadderKey;
use crate::record::Record;
use crate::series::Series;
use crate::verdicts::Verdicts;

/// Version of the results' schema. Raised whenever a field changes its meaning, disappears, or is
/// needed to check the others: since version 2 a series records its session.
pub const SCHEMA_VERSION: u32 = 2;
/// The oldest version that is still read.
pub const OLDEST_VERSION: u32 = 1;

/// The results of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Overdrive results")]
pub struct Results {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// The source of these results, if another program measured them. Fields that it does not tell
    /// (time, machine, revision, seed) are then empty or zero, and a report says "not recorded".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// When the run began, in seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// The command that was run.
    pub command: String,
    /// The measured program: Overdrive itself, at this revision.
    pub revision: Revision,
    /// The machine and its settings. Host and user names are left out.
    pub environment: Environment,
    /// Seed of the run: order of cases, inputs, resampling.
    pub seed: u64,
    /// Time per call of an empty closure, measured by the harness itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness_overhead: Option<Series>,
    /// Ceilings measured in this run.
    pub ceilings: Vec<Ceiling>,
    /// Every case, in the order in which it was run.
    pub records: Vec<Record>,
    /// The records that are the steps of a cumulative ladder.
    pub ladders: Vec<LadderKey>,
    /// Work that a study could not do on this machine, with the reason, by study.
    pub notes: Vec<Note>,
    /// Descriptions of the variants of the cases, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Verdicts of the regression gate on these cases, if a report was given them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regression: Option<Verdicts>,
}

/// A remark of a study about its own results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// The study.
    pub study: String,
    /// One sentence.
    pub text: String,
}

/// A description of the [`variant`](crate::case::Configuration::variant) of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Variant {
    /// Its name: `int8-dynamic`.
    pub name: String,
    /// A sentence without its full stop.
    pub about: String,
    /// The command that makes it of the user's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
}

impl Results {
    /// Empty results of a run that begins now, on this machine.
    pub fn begin(command: impl Into<String>, seed: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            schema_version: SCHEMA_VERSION,
            imported: None,
            started_unix_s: now.map_or(0, |since| since.as_secs()),
            command: command.into(),
            revision: Revision::current(),
            environment: Environment::probe(),
            seed,
            harness_overhead: None,
            ceilings: Vec::new(),
            records: Vec::new(),
            ladders: Vec::new(),
            notes: Vec::new(),
            variants: Vec::new(),
            regression: None,
        }
    }

    /// The record of the case with this [`id`](crate::case::Case::id).
    pub fn record(&self, id: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.case.id() == id)
    }

    /// The names of the studies, in the order in which they first appear.
    pub fn studies(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for record in &self.records {
            if !names.contains(&record.case.study.as_str()) {
                names.push(&record.case.study);
            }
        }
        names
    }

    /// The exit code of the run. Wrong outputs take precedence over failures, failures over
    /// success. Unsupported and skipped cases are no failures, unless nothing else was left: a run
    /// that measured nothing has not passed.
    pub fn exit(&self) -> Exit {
        let failed = |kinds: &[FailureKind]| {
            self.records
                .iter()
                .filter_map(|r| r.outcome.failure())
                .any(|failure| kinds.contains(&failure.kind))
        };
        let ran = self.records.iter().any(|record| record.outcome.measurement().is_some());
        if failed(&[FailureKind::Incorrect]) {
            Exit::WrongOutputs
        } else if !ran
            || failed(&[FailureKind::Failed, FailureKind::OutOfMemory, FailureKind::Timeout])
        {
            Exit::Harness
        } else {
            Exit::Fine
        }
    }

    /// Series that say nothing of their session, of all series: what was edited in them may not be
    /// seen.
    pub fn unverifiable(&self) -> (usize, usize) {
        let series =
            self.records.iter().filter_map(|record| record.outcome.measurement()?.latency.as_ref());
        let sessions: Vec<bool> =
            series.map(|series| series.conditions.session.is_some()).collect();
        (sessions.iter().filter(|known| !**known).count(), sessions.len())
    }
}

/// The JSON Schema of [`Results`], as published in `docs/results.schema.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Results);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::outcome::Outcome;
    use crate::testing::{record, results};

    /// The schema is derived from the types; what could go wrong is that it says something else
    /// than they write.
    #[test]
    fn the_schema_names_what_is_written() {
        let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
        let required = schema["required"].as_array().unwrap();
        let written = serde_json::to_value(results()).unwrap();
        for field in required {
            assert!(
                written.get(field.as_str().unwrap()).is_some(),
                "{field} is required but not written"
            );
        }
        for field in written.as_object().unwrap().keys() {
            assert!(
                schema["properties"].get(field).is_some(),
                "{field} is written but not described"
            );
        }
        let outcomes = [Outcome::Ok(Box::default()), Failure::timeout("10 s").into()];
        let described = schema["$defs"]["Outcome"].to_string();
        for outcome in outcomes {
            let written = serde_json::to_value(outcome).unwrap();
            let tag = written.as_object().unwrap().keys().next().unwrap();
            assert!(
                described.contains(&format!("\"{tag}\"")),
                "{tag} is written but not described"
            );
        }
    }

    fn code(failures: &[Failure], ran: usize) -> u8 {
        let mut found = results();
        found.records = (0..ran).map(|i| record(&format!("ran{i}"), &[1000; 6])).collect();
        for (i, failure) in failures.iter().enumerate() {
            let mut failed = record(&format!("failed{i}"), &[1000; 6]);
            failed.outcome = failure.clone().into();
            found.records.push(failed);
        }
        found.exit().code()
    }

    #[test]
    fn zero_cases_have_not_passed() {
        assert_eq!(code(&[], 0), 3);
        assert_eq!(code(&[Failure::unsupported("no GPU"), Failure::skipped("no GPU")], 0), 3);
    }

    #[test]
    fn each_failure_has_its_code() {
        assert_eq!(code(&[], 1), 0);
        assert_eq!(code(&[Failure::unsupported("no GPU"), Failure::skipped("no GPU")], 1), 0);
        assert_eq!(code(&[Failure::failed("panicked: 1")], 1), 3);
        assert_eq!(code(&[Failure::out_of_memory("1 GiB")], 1), 3);
        assert_eq!(code(&[Failure::timeout("120 s")], 1), 3);
        assert_eq!(code(&[Failure::failed("1"), Failure::incorrect("by 1")], 1), 4);
    }
}
