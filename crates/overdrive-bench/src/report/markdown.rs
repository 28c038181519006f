//! Results as a page of Markdown.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::decision::{self, Card, Decision};
use super::findings::{self, Finding};
use super::judged::Judged;
use super::overview;
use super::section::{Section, section};
use super::table::{Align, Table};
use crate::digits;
use crate::results::Results;

/// The whole report.
pub fn markdown(results: &Results) -> String {
    let judged = Judged::new(results);
    let findings = findings::of(&judged);
    page(&judged, &decision::decide(&judged), &findings)
}

/// The same, of results that were judged already: the decision, ladders, findings, every case, and
/// at the end where and how it was measured.
pub(super) fn page(judged: &Judged<'_>, decision: &Decision, findings: &[Finding]) -> String {
    let results = judged.results;
    let mut page = format!("# Overdrive results\n\n**{}**\n\n", overview::verdict(judged));
    for warning in
        decision.screening.into_iter().chain(overview::warnings(results).iter().map(|w| w.as_str()))
    {
        page += &format!("> {warning}\n\n");
    }
    page += &decided(decision);
    let sections: Vec<Section> =
        results.studies().into_iter().map(|study| section(judged, study)).collect();
    for captioned in sections.iter().flat_map(|section| &section.ladders) {
        page += &format!("\n{}\n\n{}", captioned.caption, table(&captioned.table));
    }
    page += &found(findings);
    for section in &sections {
        write!(page, "\n## {}\n", section.title).expect("writing to a string cannot fail");
        for captioned in &section.tables {
            page += &format!("\n{}\n\n{}", captioned.caption, table(&captioned.table));
        }
        if !section.remarks.is_empty() {
            page.push('\n');
        }
        for remark in &section.remarks {
            page += &format!("- {remark}\n");
        }
    }
    page +=
        "\n## Where and how\n\n<details><summary>Machine, build, run and ceilings</summary>\n\n";
    for (name, text) in overview::strip(results) {
        page += &format!("- **{name}:** {text}\n");
    }
    if !results.ceilings.is_empty() {
        page += &format!("\nCeilings measured in this run.\n\n{}", table(&ceilings(results)));
    }
    page + "\n</details>\n" + &commands(results)
}

/// The cards of one model's workload as a list, and a row for each other workload.
fn decided(decision: &Decision) -> String {
    match (decision.subjects.as_slice(), decision.of_one_model()) {
        ([], _) => String::new(),
        (_, Some((one, others))) => {
            let lines: String = one.cards.iter().map(line).collect();
            let others = match others {
                [] => String::new(),
                _ => format!("\n{}", table(&decision::rows(others))),
            };
            format!("## {}: {}\n\n{lines}{others}", one.study, one.workload)
        }
        (several, None) => format!("## What to take\n\n{}", table(&decision::rows(several))),
    }
}

/// `- **Fastest:** `cpu compile`, 215 µs [204, 249]: 1.5x over `cpu eager`. Gives up: ...`
fn line(card: &Card) -> String {
    let detail = if card.detail.is_empty() { String::new() } else { format!("; {}", card.detail) };
    let cost = card.cost().map_or(String::new(), |cost| format!(" {cost}."));
    let made_by = card.made_by.as_ref();
    let made_by = made_by.map_or(String::new(), |command| format!(" Make it: `{command}`"));
    format!("- **{}:** {}{detail}.{cost}{made_by}\n", card.title, card.answer())
}

/// The first findings, the others folded where the page is shown as HTML.
fn found(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let line = |finding: &Finding| format!("- {}{}\n", finding.sentence, behind(&finding.records));
    let (shown, more) = findings::in_sight(findings);
    let lines = |some: &[&Finding]| some.iter().map(|finding| line(finding)).collect::<String>();
    let shown = lines(&shown);
    let more = match more.as_slice() {
        [] => String::new(),
        some => {
            let (count, lines) = (some.len(), lines(some));
            format!("\n<details><summary>{count} more findings</summary>\n\n{lines}\n</details>\n")
        }
    };
    format!("\n## Findings\n\n{shown}{more}")
}

/// The records behind a sentence, folded where the page is shown as HTML.
fn behind(records: &[String]) -> String {
    let plural = if records.len() == 1 { "" } else { "s" };
    let summary = format!("<summary>{} record{plural}</summary>", records.len());
    format!(" <details>{summary}`{}`</details>", records.join("`, `"))
}

pub(super) fn ceilings(results: &Results) -> Table {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("Ceiling", Left), ("Rate", Right), ("Fastest by", Left), ("n", Right)]);
    for ceiling in &results.ceilings {
        let unit = match ceiling.kind {
            crate::ceilings::CeilingKind::Bandwidth => "B",
            crate::ceilings::CeilingKind::Compute => "FLOP",
        };
        table.push(vec![
            ceiling.name.clone(),
            digits::rate(ceiling.per_second(), None, unit),
            ceiling.method.clone(),
            ceiling.series.summary.count.to_string(),
        ]);
    }
    table
}

fn commands(results: &Results) -> String {
    let distinct = distinct_commands(results);
    if distinct.is_empty() {
        return String::new();
    }
    format!("\n## To repeat it\n\n```sh\n{}\n```\n", distinct.join("\n"))
}

/// The commands that rerun the cases, each once.
pub(super) fn distinct_commands(results: &Results) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    results
        .records
        .iter()
        .map(|record| record.command.as_str())
        .filter(|command| seen.insert(*command))
        .collect()
}

pub(crate) fn table(table: &Table) -> String {
    // A bar in a cell would end it.
    let escaped = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let titles: Vec<String> = table.columns.iter().map(|column| escaped(&column.title)).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|text| escaped(text)).collect()).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([titles[column].chars().count(), 3])
            .max()
            .unwrap_or(3)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded =
            cells.iter().zip(&widths).zip(&table.columns).map(|((text, width), column)| {
                let gap = " ".repeat(width - text.chars().count());
                match column.align {
                    Align::Left => format!("{text}{gap}"),
                    Align::Right => format!("{gap}{text}"),
                }
            });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = table.columns.iter().zip(&widths).map(|(column, width)| match column.align {
        Align::Left => "-".repeat(*width),
        Align::Right => format!("{}:", "-".repeat(width - 1)),
    });
    let rule = format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
    let body: String = rows.iter().map(|row| line(row)).collect();
    line(&titles) + &rule + &body
}

#[cfg(test)]
mod tests;
