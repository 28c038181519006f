//! `Journal`: the cases of a run, results of an earlier run, and reports of progress.

use overdrive_bench::case::Case;
use overdrive_bench::failure::FailureKind;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;

/// Told what is being measured.
pub trait Progress {
    /// A study begins.
    fn study(&self, name: &str);
    /// A workload begins.
    fn workload(&self, name: &str);
    /// A part of its work begins.
    fn stage(&self, _name: &str) {}
}

/// Nobody hears.
struct Silent;

impl Progress for Silent {
    fn study(&self, _name: &str) {}
    fn workload(&self, _name: &str) {}
}

/// The run as its user sees it.
#[derive(Clone)]
pub struct Journal<'a> {
    /// The command line up to the study, for the rerun command of each record.
    pub command: String,
    /// Who hears of progress.
    pub progress: &'a dyn Progress,
    /// Parts of names of cases: only sessions with a case whose name contains one of them are
    /// taken; none means all.
    pub only: &'a [String],
    /// Records of an interrupted run, which need not be taken again.
    pub earlier: &'a [Record],
    /// Keeps the results so far, after every session, so that an interrupted run loses one session
    /// at most.
    pub keep: &'a dyn Fn(&Results),
}

impl Journal<'_> {
    /// The journal of a run that takes every case, keeps nothing between sessions and tells nobody.
    pub fn silent(command: impl Into<String>) -> Self {
        let command = command.into();
        Self { command, progress: &Silent, only: &[], earlier: &[], keep: &|_| () }
    }

    /// Whether a session of these cases was asked for.
    pub fn wants(&self, cases: &[Case]) -> bool {
        let named = |case: &Case| {
            let name = case.id();
            self.only.iter().any(|part| name.contains(part.as_str()))
        };
        self.only.is_empty() || cases.iter().any(named)
    }

    /// Adds the records of a session and has them kept.
    pub fn add(&self, results: &mut Results, records: Vec<Record>) {
        results.records.extend(records);
        (self.keep)(results);
    }

    /// The command that takes a study's cases again. One that is called as the study is, as
    /// `bench`, has named it.
    pub(crate) fn command_of(&self, study: &str) -> String {
        match self.command.split(' ').nth(1) == Some(study) {
            true => self.command.clone(),
            false => format!("{} {study}", self.command),
        }
    }

    /// Records of these cases from an interrupted run with this seed, if it has all of them. A
    /// session is taken whole or not at all, since its cases alternated. Cases that were skipped
    /// then are tried now.
    pub(super) fn taken_earlier(&self, cases: &[Case], seed: u64) -> Option<Vec<Record>> {
        let skipped =
            |r: &Record| r.outcome.failure().is_some_and(|f| f.kind == FailureKind::Skipped);
        let find = |case: &Case| {
            let same = |r: &&Record| {
                r.case == *case && r.command == self.command_of(&case.study) && r.seed == seed
            };
            self.earlier.iter().find(same).filter(|r| !skipped(r)).cloned()
        };
        cases.iter().map(find).collect()
    }
}
