//! The summary for a terminal: each study's main table and what must be said beside it.

use comfy_table::{CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, TableStyle};

use super::findings::{self, Finding};
use super::judged::Judged;
use super::overview;
use super::section::{Captioned, section};
use super::side_tables::PAID_ONCE;
use super::table::{Align, Table};
use crate::results::Results;

/// The columns that a terminal has room for; the page has them all.
const COLUMNS: [&str; 7] =
    ["Workload", "Configuration", "Time per call [95 %]", "n", "Speed-up [95 %]", "Verdict", "Status"];

/// One line below the heads, as in a book.
pub(crate) const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none())
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none());

/// The summary, in lines of at most `width` characters where the cells can be wrapped so far.
pub fn terminal(results: &Results, width: u16) -> String {
    let judged = Judged::new(results);
    let mut text = String::new();
    let studies = results.studies();
    let alone = studies.len() == 1;
    for study in studies {
        let section = section(&judged, study);
        text += &format!("{}\n", section.title);
        text += &format!("{}\n", table(&section.tables[0].table.only(&COLUMNS), width));
        for remark in &section.remarks {
            text += &format!("  {}\n", remark.replace('`', ""));
        }
        // One study alone leaves room for what its configurations cost before the first call.
        let overhead = section.tables.iter().find(|t| t.caption == PAID_ONCE).filter(|_| alone);
        if let Some(Captioned { caption, table: costs }) = overhead {
            text += &format!("\n{caption}\n{}\n", table(costs, width));
        }
        text.push('\n');
    }
    text += &said(&findings::of(&judged));
    text += &overview::verdict(&judged);
    text.push('\n');
    if let Some(screening) = overview::screening(results) {
        text += &format!("{screening}\n");
    }
    for (name, warning) in overview::strip(results).into_iter().filter(|(name, _)| *name == "Beware") {
        text += &format!("{name}: {warning}\n");
    }
    text
}

/// The findings, a line each; none, nothing.
fn said(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let lines: String =
        findings.iter().map(|finding| format!("  {}\n", finding.sentence.replace('`', ""))).collect();
    format!("Findings\n{lines}\n")
}

pub(crate) fn table(source: &Table, width: u16) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(source.columns.iter().map(|column| column.title.as_ref()));
    for row in &source.rows {
        table.add_row(row);
    }
    for (column, head) in table.column_iter_mut().zip(&source.columns) {
        column.set_cell_alignment(match head.align {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
    }
    table.to_string()
}
