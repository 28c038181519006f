//! Results as a page of Markdown.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::decision::{Card, Decision};
use super::findings::Finding;
use super::judged::JudgedResults;
use super::section::{Section, section};
use super::{decision, findings, overview};
use overdrive_bench::digits;
use overdrive_bench::results::Results;
use overdrive_bench::table::{Align, Table, markdown_table};

/// The whole report.
pub fn markdown(results: &Results) -> String {
    let judged = JudgedResults::new(results);
    let findings = findings::of(&judged);
    page(&judged, &decision::decide(&judged), &findings)
}

/// The same, of results that were judged already: the decision, ladders, findings, every case, and
/// at the end where and how it was measured.
pub(super) fn page(
    judged: &JudgedResults<'_>,
    decision: &Decision,
    findings: &[Finding],
) -> String {
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
        page += &format!("\n{}\n\n{}", captioned.caption, markdown_table(&captioned.table));
    }
    page += &found(findings);
    for section in &sections {
        write!(page, "\n## {}\n", section.title).expect("writing to a string cannot fail");
        for captioned in &section.tables {
            page += &format!("\n{}\n\n{}", captioned.caption, markdown_table(&captioned.table));
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
        page +=
            &format!("\nCeilings measured in this run.\n\n{}", markdown_table(&ceilings(results)));
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
                _ => format!("\n{}", markdown_table(&decision::rows(others))),
            };
            format!("## {}: {}\n\n{lines}{others}", one.study, one.workload)
        }
        (several, None) => {
            format!("## What to take\n\n{}", markdown_table(&decision::rows(several)))
        }
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
            overdrive_bench::ceilings::CeilingKind::Bandwidth => "B",
            overdrive_bench::ceilings::CeilingKind::Compute => "FLOP",
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

#[cfg(test)]
mod tests;
