//! A report over one results file or several: everything that follows from them, worked out once and then written as
//! page, Markdown or pictures.

use super::charts::{self, Chart};
use super::findings::{self, Finding};
use super::judged::Judged;
use super::markdown;
use super::matrix;
use super::table::Table;
use crate::results::Results;

/// A report before it is written.
pub struct Report<'r> {
    pub(super) results: &'r [Results],
    pub(super) files: Vec<File<'r>>,
    /// The same cases on several machines, where there are several and they share cases.
    pub(super) matrix: Option<Table>,
    pub(super) hardware: Option<Chart>,
}

/// One results file in it.
pub(super) struct File<'r> {
    /// Before every anchor and name of a chart: empty for the first file, so that its links are those of a report
    /// of its own.
    pub(super) prefix: String,
    /// What its machine is called.
    pub(super) machine: String,
    pub(super) judged: Judged<'r>,
    /// What follows from it in words.
    pub(super) findings: Vec<Finding>,
    /// Charts by study.
    pub(super) charts: Vec<(String, Vec<Chart>)>,
}

impl<'r> Report<'r> {
    /// Judges every file and builds its charts.
    pub fn new(results: &'r [Results]) -> Self {
        let files: Vec<File<'r>> = results
            .iter()
            .zip(matrix::machines(results))
            .enumerate()
            .map(|(i, (results, machine))| File::new(i, results, machine))
            .collect();
        let judged: Vec<&Judged<'r>> = files.iter().map(|file| &file.judged).collect();
        let machines: Vec<String> = files.iter().map(|file| file.machine.clone()).collect();
        let several = results.len() > 1;
        let (matrix, hardware) = if several {
            (matrix::table(&judged, &machines), charts::hardware(&judged, &machines))
        } else {
            (None, None)
        };
        Self { results, files, matrix, hardware }
    }

    /// Every chart, in the order of the page. Their ids are distinct.
    pub fn charts(&self) -> impl Iterator<Item = &Chart> {
        let of_files = self.files.iter().flat_map(|file| file.charts.iter().flat_map(|(_, charts)| charts));
        self.hardware.iter().chain(of_files)
    }

    /// The report as Markdown: the matrix, then each file's page.
    pub fn markdown(&self) -> String {
        let pages: Vec<String> =
            self.files.iter().map(|file| markdown::page(&file.judged, &file.findings)).collect();
        match &self.matrix {
            Some(matrix) => format!(
                "# Overdrive results of {} machines\n\nShown, never judged.\n\n{}\n{}",
                self.files.len(),
                markdown::table(matrix),
                pages.join("\n")
            ),
            None => pages.join("\n"),
        }
    }
}

impl<'r> File<'r> {
    fn new(index: usize, results: &'r Results, machine: String) -> Self {
        let prefix = if index == 0 { String::new() } else { format!("f{}-", index + 1) };
        let judged = Judged::new(results);
        let of_study = |study: &str| {
            let mut charts = charts::of_study(&judged, study);
            for chart in &mut charts {
                chart.id.insert_str(0, &prefix);
                chart.records.iter_mut().for_each(|anchor| anchor.insert_str(0, &prefix));
            }
            (study.to_owned(), charts)
        };
        let charts = results.studies().into_iter().map(of_study).collect();
        let findings = findings::of(&judged);
        Self { prefix, machine, judged, findings, charts }
    }
}
