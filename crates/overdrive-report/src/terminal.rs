//! The results for a terminal in detail: each study's main table and notes.

use super::captioned::Captioned;
use super::findings::Finding;
use super::judged::JudgedResults;
use super::section::section;
use super::side_tables::PAID_ONCE;
use super::{findings, overview};
use overdrive_bench::results::Results;
use overdrive_bench::table::{indented, terminal_table};

/// The columns that a terminal has room for; the page has them all.
const COLUMNS: [&str; 7] = [
    "Workload",
    "Configuration",
    "Time per call [95 %]",
    "n",
    "Speed-up [95 %]",
    "Verdict",
    "Status",
];

/// Every study's tables, remarks and findings, in lines of at most `width` characters where words
/// are no longer.
pub fn terminal(results: &Results, width: u16) -> String {
    let judged = JudgedResults::new(results);
    let mut text = String::new();
    let studies = results.studies();
    let alone = studies.len() == 1;
    for study in studies {
        let section = section(&judged, study);
        text += &format!("{}\n", section.title);
        text += &format!("{}\n", terminal_table(&section.tables[0].table.only(&COLUMNS), width));
        text += &section.remarks.iter().map(|remark| told(remark, width)).collect::<String>();
        // One study alone leaves room for what its configurations cost before the first call.
        let overhead = section.tables.iter().find(|t| t.caption == PAID_ONCE).filter(|_| alone);
        if let Some(Captioned { caption, table: costs }) = overhead {
            text += &format!("\n{caption}\n{}\n", terminal_table(costs, width));
        }
        text.push('\n');
    }
    text += &said(&findings::of(&judged), width);
    let closing = std::iter::once(overview::verdict(&judged))
        .chain(overview::screening(results).map(str::to_owned))
        .chain(overview::warnings(results));
    text + &closing
        .flat_map(|line| indented(&line, width.into(), ""))
        .map(|line| line + "\n")
        .collect::<String>()
}

/// A sentence below a table.
fn told(sentence: &str, width: u16) -> String {
    let lines = indented(&sentence.replace('`', ""), usize::from(width), "  ");
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The findings; none, nothing.
fn said(findings: &[Finding], width: u16) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let lines: String = findings.iter().map(|finding| told(&finding.sentence, width)).collect();
    format!("Findings\n{lines}\n")
}
