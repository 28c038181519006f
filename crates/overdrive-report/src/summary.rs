//! The summary at the end of a run: ten lines at most, including the last lines of the command. It
//! gives the measurements, the winners with their intervals and costs, and the caveats. `-v` prints
//! the tables.

use super::decision::{Card, Decision, WorkloadDecision};
use super::findings::Topic;
use super::judged::{JudgedResults, JudgedRow};
use super::{decision, findings, overview};
use overdrive_bench::failure::FailureKind;
use overdrive_bench::results::Results;
use overdrive_bench::table::indented;

/// Lines in addition to the command that makes the winner. One line is left for the report's path.
const MOST: usize = 8;
/// Columns of a card's title.
const TITLE: usize = 15;
/// A model's other workloads that are named.
const OTHERS: usize = 2;
/// Lines for workloads, where there are several.
const NAMED: usize = 5;

/// The summary of a run at its end, in at most `width` columns. A line that does not fit whole is
/// left out, never cut, but for a command.
pub fn summary(results: &Results, width: u16) -> String {
    let judged = JudgedResults::new(results);
    let decision = decision::decide(&judged);
    let first = decision.of_one_model().and_then(|(one, _)| one.cards[0].made_by.as_ref());
    let made_by = first.map_or(String::new(), |command| format!("make it: {command}\n"));
    lines(&judged, &decision, usize::from(width)) + &made_by
}

fn lines(judged: &JudgedResults<'_>, decision: &Decision, width: usize) -> String {
    let results = judged.results;
    let ran = overview::ran(results);
    let wrong = incorrect(judged, width);
    let said = caveats(judged, decision, width);
    let studies = results.studies().len();
    let common = match judged.common.to_string() {
        none if none.is_empty() => none,
        common => format!(", {common}"),
    };
    let of = if studies == 1 { common } else { format!("{common}, {studies} studies") };
    let mut lines = match (decision.subjects.as_slice(), decision.of_one_model()) {
        ([], _) => return nothing(judged, width),
        (_, Some((one, others))) => {
            let head = match studies {
                1 => format!("{}: {}{of}: {ran}", one.study, one.workload),
                _ => format!("{}{of}: {ran}", one.workload),
            };
            let mut lines = indented(&head, width, "");
            let others = of_others(&one.model, others, width);
            let room = MOST.saturating_sub(wrong.len() + said.len() + lines.len() + others.len());
            lines.extend(of_cards(&one.cards, width, room));
            lines.extend(others);
            lines
        }
        (several, None) => {
            let mut lines = vec![format!("{} workloads{of}: {ran}", several.len())];
            lines.extend(of_several(several, width));
            lines
        }
    };
    lines.truncate(MOST - wrong.len() - said.len());
    [wrong, lines, said].concat().join("\n") + "\n"
}

/// `2 incorrect: cpu jit f32 on mlp B=32`: the first thing to read, in two lines at most. As many
/// cases are named as fit.
fn incorrect(judged: &JudgedResults<'_>, width: usize) -> Vec<String> {
    let is_wrong = |row: &&JudgedRow<'_>| {
        row.record.outcome.failure().is_some_and(|failure| failure.kind == FailureKind::Incorrect)
    };
    let wrong = judged.rows.iter().filter(is_wrong);
    let names: Vec<String> = wrong.map(|row| plain(&findings::named(row))).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let mut lines = joined(&format!("{} incorrect: ", names.len()), names, width);
    lines.truncate(2);
    lines
}

/// How many cases ran where there is nothing to decide, and why the others did not, in whole
/// sentences, however many lines they take.
fn nothing(judged: &JudgedResults<'_>, width: usize) -> String {
    let mut lines = indented(&overview::verdict(judged), width, "");
    for finding in findings::of(judged) {
        lines.extend(indented(&plain(&finding.sentence), width, "  "));
    }
    let warnings = overview::warnings(judged.results);
    lines.extend(warnings.iter().flat_map(|warning| indented(warning, width, "")));
    lines.join("\n") + "\n"
}

/// The one line of results that `-q` leaves.
pub fn result_line(results: &Results) -> String {
    let judged = JudgedResults::new(results);
    match decision::decide(&judged).of_one_model() {
        Some((one, _)) => {
            let wrong = incorrect(&judged, usize::MAX).into_iter().map(|line| line + "; ");
            let answer = plain(&one.cards[0].answer());
            format!("{}{}: {}: {answer}", wrong.collect::<String>(), one.study, one.workload)
        }
        None => overview::verdict(&judged),
    }
}

/// The winners. Each is followed by what it gives up, if that fits as a whole.
fn of_cards(cards: &[Card], width: usize, room: usize) -> Vec<String> {
    let mut blocks: Vec<[Vec<String>; 2]> = cards.iter().map(|card| of_card(card, width)).collect();
    let count = |blocks: &[[Vec<String>; 2]]| blocks.iter().flatten().map(Vec::len).sum::<usize>();
    while count(&blocks) > room {
        let longest = blocks.iter_mut().max_by_key(|[_, costs]| costs.len());
        match longest {
            Some([_, costs]) if !costs.is_empty() => costs.clear(),
            _ => break,
        }
    }
    blocks.into_iter().flatten().flatten().collect()
}

/// `fastest        cpu compile f32 t2, 215 µs [204, 249]`, and below it over what, and what it
/// costs.
fn of_card(card: &Card, width: usize) -> [Vec<String>; 2] {
    let title = format!("{:<TITLE$}", card.title.to_lowercase());
    let is_fastest = card.detail.contains("x [");
    let told = card.beside.iter().filter(|_| !is_fastest).cloned();
    let answer = joined(&title, [card.answer()].into_iter().chain(told), width);
    let costs = card.gives_up.iter().map(|cost| format!("gives up: {cost}"));
    let detail = card.detail.split("; ").map(str::to_owned);
    // Who is fastest says first by how much, everybody else what that costs.
    let (gains, others): (Vec<String>, Vec<String>) = detail.partition(|part| part.contains("x ["));
    let beside = card.beside.iter().filter(|_| is_fastest).cloned();
    let parts = gains.into_iter().chain(beside).chain(costs).chain(others);
    [answer, joined(&" ".repeat(TITLE), parts, width)]
}

/// A model's other workloads, a line each under the title that parts it from the first:
/// `next token     cpu eager f32, 1.04x [1.01, 1.06] over cpu compile f32; 7.8 ms [7.6, 7.9]`.
fn of_others(model: &str, others: &[WorkloadDecision], width: usize) -> Vec<String> {
    let line = |subject: &WorkloadDecision| {
        let name = subject.workload.trim_start_matches(model).trim_start_matches([',', ' ']);
        let title = name.split(" batch=").next().unwrap_or(name);
        if title.chars().count() < TITLE {
            let card = &subject.cards[0];
            let gain = card.detail.split("; ").next().filter(|first| first.contains("x ["));
            let gain = gain.and_then(|gain| gain.split(" (").next());
            // The gain needs no figure beside it where there is no room for both.
            let parts = match (&card.winner, gain) {
                (Some(winner), Some(gain)) => [format!("`{winner}`, {gain}"), card.figure.clone()],
                _ => [card.answer(), card.detail.clone()],
            };
            return joined(&format!("{title:<TITLE$}"), parts, width);
        }
        of_several(std::slice::from_ref(subject), width)
    };
    let shown = others.iter().take(OTHERS).flat_map(line);
    let more = others.len().saturating_sub(OTHERS);
    let rest = (more > 0).then(|| format!("and {more} more workloads: -v or the report has them"));
    shown.chain(rest).collect()
}

fn of_several(subjects: &[WorkloadDecision], width: usize) -> Vec<String> {
    // The workloads with a winner say more; of each study the first come first.
    let mut ranked: Vec<(usize, bool, &WorkloadDecision)> = Vec::new();
    for (at, subject) in subjects.iter().enumerate() {
        let earlier = subjects[..at].iter().filter(|other| other.study == subject.study).count();
        ranked.push((earlier, subject.cards[0].winner.is_none(), subject));
    }
    ranked.sort_by_key(|(earlier, is_open, _)| (*is_open, *earlier));
    let line = |(_, _, subject): &(usize, bool, &WorkloadDecision)| {
        let card = &subject.cards[0];
        let head = format!("{}: {}: ", subject.study, subject.workload);
        joined(&head, [card.answer(), card.detail.clone()], width)
    };
    let mut shown: Vec<String> = Vec::new();
    let mut named = 0;
    for lines in ranked.iter().map(line) {
        if shown.len() + lines.len() > NAMED {
            break;
        }
        named += 1;
        shown.extend(lines);
    }
    let more = subjects.len() - named;
    let rest = (more > 0).then(|| format!("and {more} more workloads: -v or the report has them"));
    shown.into_iter().chain(rest).collect()
}

/// Parts with semicolons between them, those that fit on the line behind `head`; a first part that
/// does not fit goes on below.
fn joined(head: &str, parts: impl IntoIterator<Item = String>, width: usize) -> Vec<String> {
    let parts: Vec<String> =
        parts.into_iter().map(|part| plain(&part)).filter(|part| !part.is_empty()).collect();
    let Some((first, rest)) = parts.split_first() else { return Vec::new() };
    let blank = " ".repeat(TITLE.min(head.chars().count()));
    let mut lines = indented(first, width, &blank);
    if blank.len() == head.chars().count() {
        lines[0] = format!("{head}{}", lines[0].trim_start());
    } else {
        lines = indented(&format!("{head}{first}"), width, "");
    }
    for part in rest {
        let last = lines.last_mut().expect("the first part gave a line");
        if last.chars().count() + 2 + part.chars().count() <= width {
            *last += &format!("; {part}");
        }
    }
    lines
}

/// Doubts about the figures, in short: two lines at most.
fn caveats(judged: &JudgedResults<'_>, decision: &Decision, width: usize) -> Vec<String> {
    let mut parts = Vec::new();
    if decision.screening.is_some() {
        parts.push("a quick look, no verdict: rerun without --quick to quote figures".to_owned());
    }
    parts.extend(
        overview::warnings(judged.results).iter().map(|text| text.replace("Warning: ", "")),
    );
    let found = findings::of(judged);
    let counted: Vec<String> = findings::AGAINST
        .iter()
        .filter(|topic| **topic != Topic::Incorrect) // Said above everything else.
        .filter_map(|topic| match found.iter().filter(|finding| finding.topic == *topic).count() {
            0 => None,
            count => Some(format!("{topic} ({count})")),
        })
        .collect();
    if !counted.is_empty() {
        parts.push(format!("findings: {}", counted.join(", ")));
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts.into_iter().map(|part| plain(&part)) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= width => {
                *line += &format!("; {part}")
            }
            _ => lines.extend(joined(
                &format!("{:<TITLE$}", if lines.is_empty() { "caveat" } else { "" }),
                [part],
                width,
            )),
        }
    }
    lines.truncate(2);
    lines
}

/// Without the marks of names, which a terminal shows as they are.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::gallery;
    use overdrive_bench::testing::example;

    /// The only workload of one study of the gallery.
    fn quantized() -> Results {
        let mut found = gallery();
        found.records.retain(|record| record.case.study == "quantization");
        found.ladders.clear();
        found
    }

    #[test]
    fn eight_lines_hold_what_counts_and_fit() {
        for results in [example(), gallery(), quantized()] {
            for width in [60, 80, 120, 200] {
                let text = summary(&results, width);
                let text = text.split("make it: ").next().expect("the first part");
                assert!(text.lines().count() <= MOST, "{width}: {text}");
                assert!(
                    text.lines().all(|line| line.chars().count() <= usize::from(width)),
                    "{width}: {text}"
                );
                let words: Vec<&str> = text.split_whitespace().collect();
                assert!(words.join(" ").contains("cases ran"), "{text}");
            }
        }
    }

    #[test]
    fn one_model_has_winner_interval_cost_and_caveat() {
        insta::assert_snapshot!(summary(&quantized(), 100));
    }

    #[test]
    fn wrong_outputs_are_said_first_and_named() {
        let mut found = quantized();
        let last = found.records.last_mut().expect("the gallery has records");
        last.outcome = overdrive_bench::failure::Failure::incorrect("differs by 0.5").into();
        let text = summary(&found, 100);
        assert!(text.starts_with("1 incorrect: cpu "), "{text}");
        assert!(!text.contains("incorrect (1)"), "said once: {text}");
        assert!(result_line(&found).starts_with("1 incorrect: cpu "), "{}", result_line(&found));
        assert!(!summary(&quantized(), 100).contains("incorrect"));
    }

    #[test]
    fn a_warning_stands_where_nothing_is_to_decide_too() {
        let mut found = example();
        found.records.iter_mut().for_each(|record| {
            record.outcome = overdrive_bench::failure::Failure::unsupported("no GPU").into();
        });
        found.environment.load_average = Some(2.5);
        assert!(
            summary(&found, 80).contains("Warning: load average 2.5"),
            "{}",
            summary(&found, 80)
        );
    }

    #[test]
    fn where_nothing_ran_the_reason_is_said_in_full() {
        let mut found = example();
        found.records.retain(|record| record.outcome.failure().is_some());
        found.records.iter_mut().for_each(|record| record.baseline = None);
        found.ladders.clear();
        let text = summary(&found, 60);
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("the device has no graphs | try compile"), "{text}");
    }

    #[test]
    fn quiet_is_one_line() {
        for results in [example(), gallery(), quantized()] {
            assert_eq!(result_line(&results).lines().count(), 1);
        }
        assert!(result_line(&quantized()).starts_with("quantization: digits-mlp B=64: "));
    }
}
