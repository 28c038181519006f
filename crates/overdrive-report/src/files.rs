//! A report over one results file or several: everything that follows from them, worked out once
//! and then written as page, Markdown or pictures.

use super::charts::Chart;
use super::decision::Decision;
use super::findings::Finding;
use super::judged::JudgedResults;
use super::{charts, decision, findings, lost, machines, markdown, matrix};
use overdrive_bench::results::Results;
use overdrive_bench::table::{Table, markdown_table};

/// A report before it is written.
pub struct Report<'r> {
    pub(super) results: &'r [Results],
    pub(super) files: Vec<File<'r>>,
    /// The same cases on several machines, where there are several and they share cases.
    pub(super) matrix: Option<Table>,
    pub(super) hardware: Option<Chart>,
    /// Quality that fell from one file to the next, in words.
    pub(super) lost: Vec<String>,
}

/// One results file in it.
pub(super) struct File<'r> {
    /// Prefix of every anchor and chart name. Empty for the first file, so that its links are those
    /// of a separate report.
    pub(super) prefix: String,
    /// The name of its machine.
    pub(super) machine: String,
    pub(super) judged: JudgedResults<'r>,
    /// The recommended configurations.
    pub(super) decision: Decision,
    /// Its findings.
    pub(super) findings: Vec<Finding>,
    /// The charts that the page opens with: the model on every engine, ladders, accuracy against
    /// cost.
    pub(super) leading: Vec<Chart>,
    /// All others by study.
    pub(super) charts: Vec<(String, Vec<Chart>)>,
}

impl<'r> Report<'r> {
    /// Judges every file and builds its charts.
    pub fn new(results: &'r [Results]) -> Self {
        let files: Vec<File<'r>> = results
            .iter()
            .zip(machines::names(results))
            .enumerate()
            .map(|(i, (results, machine))| File::new(i, results, machine))
            .collect();
        let judged: Vec<&JudgedResults<'r>> = files.iter().map(|file| &file.judged).collect();
        let machines: Vec<String> = files.iter().map(|file| file.machine.clone()).collect();
        let several = results.len() > 1;
        let (matrix, hardware) = if several {
            (matrix::table(&judged, &machines), charts::hardware(&judged, &machines))
        } else {
            (None, None)
        };
        Self { results, files, matrix, hardware, lost: lost::between(results) }
    }

    /// Every chart, in the order of the page. Their ids are distinct.
    pub fn charts(&self) -> impl Iterator<Item = &Chart> {
        let of_files = self.files.iter().flat_map(|file| {
            file.leading.iter().chain(file.charts.iter().flat_map(|(_, charts)| charts))
        });
        self.hardware.iter().chain(of_files)
    }

    /// Quality that a case lost from one file to the next, a sentence each.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// The report as Markdown: the matrix, then each file's page.
    pub fn markdown(&self) -> String {
        let pages: Vec<String> = self
            .files
            .iter()
            .map(|file| markdown::page(&file.judged, &file.decision, &file.findings))
            .collect();
        match &self.matrix {
            Some(matrix) => {
                let lost: String = self.lost.iter().map(|one| format!("- {one}\n")).collect();
                format!(
                    "# Overdrive results: {}\n\nTimes are shown, never judged.\n\n{lost}\n{}\n{}",
                    machines::counted(self.results),
                    markdown_table(matrix),
                    pages.join("\n")
                )
            }
            None => pages.join("\n"),
        }
    }
}

/// Ladders, and charts of accuracy against cost, that the page opens with; the others stand with
/// their study.
const LEADING: usize = 2;

impl<'r> File<'r> {
    fn new(index: usize, results: &'r Results, machine: String) -> Self {
        let prefix = if index == 0 { String::new() } else { format!("f{}-", index + 1) };
        let judged = JudgedResults::new(results);
        let studies = results.studies();
        let (mut ladders, mut costs, mut charts) = (Vec::new(), Vec::new(), Vec::new());
        for study in &studies {
            let mut of_study = charts::of_study(&judged, study);
            let spare = |leading: &mut Vec<Chart>, found: &mut Vec<Chart>| {
                let room = LEADING.saturating_sub(leading.len()).min(found.len());
                leading.extend(found.drain(..room));
            };
            spare(&mut ladders, &mut of_study.ladders);
            spare(&mut costs, &mut of_study.costs);
            let rest = [of_study.ladders, of_study.costs, of_study.rest].concat();
            charts.push(((*study).to_owned(), rest));
        }
        let (findings, decision) = (findings::of(&judged), decision::decide(&judged));
        let mut leading = Vec::from_iter(charts::contest(&judged, &decision));
        if let ([(_, only)], true) = (charts.as_mut_slice(), leading.is_empty())
            && let Some(at) =
                only.iter().position(|chart| chart.id.ends_with(charts::TIME_PER_CALL))
        {
            leading.push(only.remove(at));
        }
        leading.extend(ladders.into_iter().chain(costs));
        for chart in leading.iter_mut().chain(charts.iter_mut().flat_map(|(_, charts)| charts)) {
            chart.id.insert_str(0, &prefix);
            chart.records.iter_mut().for_each(|anchor| anchor.insert_str(0, &prefix));
        }
        Self { prefix, machine, judged, decision, findings, leading, charts }
    }
}
