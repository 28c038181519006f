//! Results while they are being imported: every field that a foreign file does not fill stays
//! unrecorded.

use std::collections::BTreeSet;
use std::path::Path;

use super::error::ImportError;
use super::format::Format;
use crate::case::{Case, Configuration, Workload};
use crate::environment::{Accelerator, Environment, Revision};
use crate::integrity::check;
use crate::measurement::Measurement;
use crate::outcome::Outcome;
use crate::record::Record;
use crate::reported::Reported;
use crate::results::{Note, Results, SCHEMA_VERSION};

/// Results to be.
pub(super) struct Draft<'p> {
    path: &'p Path,
    format: Format,
    study: &'static str,
    results: Results,
    ids: BTreeSet<String>,
}

impl<'p> Draft<'p> {
    /// Results of `study`, from a file of this format.
    pub(super) fn new(path: &'p Path, format: Format, study: &'static str) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let results = Results {
            schema_version: SCHEMA_VERSION,
            imported: Some(format!("{format}, `{name}`")),
            started_unix_s: 0,
            command: String::new(),
            revision: Revision { version: String::new(), commit: None, dirty: None },
            environment: Environment::unrecorded(),
            seed: 0,
            harness_overhead: None,
            ceilings: Vec::new(),
            records: Vec::new(),
            ladders: Vec::new(),
            notes: Vec::new(),
            variants: vec![],
            regression: None,
        };
        Self { path, format, study, results, ids: BTreeSet::new() }
    }

    /// A device that the file names.
    pub(super) fn device(&mut self, key: String, name: String) {
        self.results.environment.devices.push(Accelerator {
            key,
            name,
            properties: Default::default(),
        });
    }

    /// When the run began, where the file says.
    pub(super) fn started(&mut self, unix_s: u64) {
        self.results.started_unix_s = unix_s;
    }

    /// Something that a reader must know of these results.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.results.notes.push(Note { study: self.study.to_owned(), text: text.into() });
    }

    /// The case of a record to be.
    pub(super) fn case(&self, workload: Workload, configuration: Configuration) -> Case {
        Case { study: self.study.to_owned(), workload, configuration }
    }

    /// Adds a record. A case that the file holds several times is numbered, for nobody says which
    /// of them counts. Quantities beyond what JSON can hold are not kept.
    pub(super) fn record(&mut self, mut case: Case, baseline: Option<&Case>, mut outcome: Outcome) {
        if let Some(measurement) = outcome.measurement_mut() {
            measurement.quantities.retain(|_, value| value.is_finite());
        }
        let plain = case.configuration.variant.clone();
        for ordinal in 2.. {
            if self.ids.insert(case.id()) {
                break;
            }
            let numbered = [plain.clone(), Some(format!("#{ordinal}"))];
            case.configuration.variant =
                Some(numbered.into_iter().flatten().collect::<Vec<_>>().join(" "));
        }
        let baseline = baseline.filter(|baseline| **baseline != case).map(Case::id);
        self.results.records.push(Record {
            case,
            baseline,
            seed: 0,
            command: String::new(),
            outcome,
        });
    }

    /// The results, unless nothing was measured; `missing` is what was looked for.
    pub(super) fn finish(self, missing: &'static str) -> Result<Results, ImportError> {
        let path = self.path.to_owned();
        if self.results.records.is_empty() {
            return Err(ImportError::Empty { path, format: self.format, missing });
        }
        let check = check(&self.results);
        check.map_err(|reason| malformed(self.path, self.format, reason)).map(|()| self.results)
    }
}

/// The error for a damaged file of a known format.
pub(super) fn malformed(path: &Path, format: Format, reason: impl ToString) -> ImportError {
    ImportError::Malformed { path: path.to_owned(), format, reason: reason.to_string() }
}

/// A configuration with only the back end known.
pub(super) fn configuration(backend: impl Into<String>) -> Configuration {
    let backend = backend.into();
    Configuration {
        device: backend.clone(),
        backend,
        mode: String::new(),
        dtype: String::new(),
        threads: 0,
        variant: None,
    }
}

/// The reported figures, or why they cannot be true.
pub(super) fn outcome(reported: Reported) -> Outcome {
    reported.check().map(|()| Measurement::reported(reported)).into()
}
