//! The one file that a run leaves: everything else is drawn from it.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ceilings::Ceiling;
use crate::environment::{Environment, Revision};
use crate::gate::Verdicts;
use crate::integrity;
use crate::ladder::LadderKey;
use crate::record::Record;
use crate::series::Series;

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
    /// Where these results come from, if another program measured them. What it does not tell
    /// (time, machine, revision, seed) is then empty or zero, and a report says "not recorded".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// When the run began, in seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// The command that was run.
    pub command: String,
    /// What was measured: Overdrive itself, at this revision.
    pub revision: Revision,
    /// Where. Host and user names are left out.
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
    /// Which records are the steps of a cumulative ladder.
    pub ladders: Vec<LadderKey>,
    /// What a study could not do on this machine, and why, by study.
    pub notes: Vec<Note>,
    /// What the regression gate said of these cases, where a report was given its verdicts.
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

/// Why a results file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistency {
    /// Written by another version.
    #[error(
        "schema version {found}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}: rerun with this \
         version of Overdrive, or read it with the one that wrote it"
    )]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Two records of one case.
    #[error("two records of the case `{case}`: a case is measured once in a run")]
    Duplicate {
        /// The case's id.
        case: String,
    },
    /// Two numbers of the file that cannot both be.
    #[error(
        "`{case}` contradicts itself: {why}. The file was edited or damaged: run the case again"
    )]
    Contradiction {
        /// The case's id, or what else was timed.
        case: String,
        /// What contradicts what.
        why: String,
    },
    /// A record or ladder names a case that is not there.
    #[error("`{from}` refers to `{case}`, of which there is no record")]
    Missing {
        /// What refers to it.
        from: String,
        /// The id referred to.
        case: String,
    },
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

    /// Checks what the types cannot: version, one record a case, references that lead somewhere,
    /// and that everything derived or recorded twice agrees.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn check(&self) -> Result<(), Inconsistency> {
        if !(OLDEST_VERSION..=SCHEMA_VERSION).contains(&self.schema_version) {
            return Err(Inconsistency::Version { found: self.schema_version });
        }
        let mut ids = BTreeSet::new();
        for record in &self.records {
            let case = record.case.id();
            if !ids.insert(case.clone()) {
                return Err(Inconsistency::Duplicate { case });
            }
        }
        let baselines =
            self.records.iter().filter_map(|r| Some((r.case.id(), r.baseline.as_ref()?)));
        let rungs = self
            .ladders
            .iter()
            .flat_map(|l| l.rungs.iter().map(|rung| (l.title.clone(), &rung.case)));
        match baselines.chain(rungs).find(|(_, case)| !ids.contains(*case)) {
            Some((from, case)) => Err(Inconsistency::Missing { from, case: case.clone() }),
            None => integrity::check(self),
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
    use crate::outcome::{Failure, Outcome};

    /// The schema is derived from the types; what could go wrong is that it says something else
    /// than they write.
    #[test]
    fn the_schema_names_what_is_written() {
        let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
        let required = schema["required"].as_array().unwrap();
        let written = serde_json::to_value(crate::testing::results()).unwrap();
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
}
