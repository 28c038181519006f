//! Verdicts as Markdown that reads well as a comment on a pull request: the verdict first, what
//! needs attention next, all else folded away.

use super::table::table;
use overdrive_bench::date::utc;
use overdrive_bench::table::markdown_table;
use overdrive_bench::verdicts::{CaseVerdict, Verdicts};

/// The whole page.
pub fn markdown(verdicts: &Verdicts) -> String {
    let mut page =
        format!("## Regression gate: {}\n\n**{}**\n", outcome(verdicts), verdicts.headline());
    page += &format!("\n`{}` against `{}`", verdicts.current.name, verdicts.baseline.name);
    page += &format!(" on {}.\n", verdicts.environment.cpu.model);
    for flagged in &verdicts.control.flagged {
        page += &format!(
            "\n> The baseline against itself: `{}`, `{}` {}. Whatever moved that moves the others \
             too.\n",
            flagged.case, flagged.figure, flagged.change
        );
    }
    for note in &verdicts.notes {
        page += &format!("\n> {note}\n");
    }
    let (quiet, loud): (Vec<&CaseVerdict>, Vec<&CaseVerdict>) =
        verdicts.cases.iter().partition(|case| case.is_quiet());
    if !loud.is_empty() {
        page += &format!("\n{}", markdown_table(&table(&loud)));
        page += &reasons(&loud);
    }
    if !quiet.is_empty() {
        page += &format!("\n<details><summary>{} without a regression</summary>\n\n", quiet.len());
        page += &format!("{}{}\n</details>\n", markdown_table(&table(&quiet)), reasons(&quiet));
    }
    for (side, failure) in &verdicts.evidence.lost {
        page += &format!("\n- without results: {side}: {failure}\n");
    }
    page + &footer(verdicts)
}

fn reasons(cases: &[&CaseVerdict]) -> String {
    let lines = cases.iter().flat_map(|case| {
        case.reasons().into_iter().map(|reason| format!("\n- `{}`: {reason}\n", case.case))
    });
    lines.collect()
}

/// One word for the headline.
fn outcome(verdicts: &Verdicts) -> &'static str {
    use overdrive_bench::exit::Exit;
    match verdicts.exit() {
        Exit::Fine => "passed",
        Exit::Regression => "regression",
        Exit::BadInput | Exit::Harness | Exit::OtherRank => "could not be run",
        Exit::WrongOutputs => "wrong outputs",
        Exit::Inconclusive => "inconclusive",
        Exit::Interrupted | Exit::ClosedPipe | Exit::Terminated => "interrupted",
    }
}

fn footer(verdicts: &Verdicts) -> String {
    let load =
        verdicts.environment.load_average.map_or(String::new(), |load| format!(", load {load:.2}"));
    format!(
        "\n<sub>Time is current over baseline, over 1 is slower; its interval holds at every look \
         of the session with 99 %, over \
         {} blocks of fresh processes in {:.0} s. {} UTC, seed {}{load}. Control: {} blocks of \
         the baseline against itself. \
         Reruns with `{}`.</sub>\n",
        verdicts.evidence.blocks.len(),
        verdicts.evidence.elapsed_s,
        utc(verdicts.started_unix_s),
        verdicts.seed,
        verdicts.control.blocks,
        verdicts.command
    )
}
