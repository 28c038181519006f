//! The page of a decision: what was decided, everything that was tried, which layers are
//! sensitive, and how to repeat it. On the terminal, and as Markdown.

use super::advice::undecided;
use super::evidence::Evidence;
use super::tried::tried;
use crate::failure::Failure;
use crate::terminal::width;
use overdrive::bench::digits;
use overdrive::bench::table::{Align, Table, indented, markdown_table, terminal_table};
use overdrive::optimize::{Asked, Decision, Fate, Form, Judgement, Outcome, Target, Tried};
use overdrive::report::charts::Chart;
#[cfg(feature = "plots")]
use overdrive::report::charts::{FrontPoint, front};
use overdrive::report::html::{Part, paper};
use std::fmt::Write;

/// Layers that are named as sensitive, at most.
const SENSITIVE: usize = 10;

/// The title of what was decided.
const DECISION: &str = "Decision";

/// A part of the page.
pub(super) struct Section {
    title: &'static str,
    lines: Vec<String>,
    table: Option<Table>,
}

impl Section {
    /// For the terminal.
    pub(super) fn terminal(&self) -> String {
        let mut text = String::new();
        if let Some(table) = &self.table {
            text += &terminal_table(table, width());
            text.push('\n');
        }
        for line in self.lines.iter().flat_map(|line| indented(line, width().into(), "")) {
            text += &format!("{line}\n");
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n", self.title);
        self.lines.iter().for_each(|line| text += &format!("{line}\n\n"));
        if let Some(table) = &self.table {
            text += &markdown_table(table);
            text.push('\n');
        }
        text
    }
}

/// The page as Markdown.
pub(super) fn markdown(evidence: &Evidence, decision: &Decision) -> String {
    let mut text = format!("# What to deploy of {}\n\n", evidence.about.model);
    for section in sections(evidence, decision) {
        text += &section.markdown();
    }
    text
}

/// The page as HTML.
pub(super) fn html(evidence: &Evidence, decision: &Decision) -> Result<String, Failure> {
    let mut parts: Vec<Part> = sections(evidence, decision)
        .into_iter()
        .filter(|section| section.title != DECISION)
        .map(|section| Part {
            title: section.title.to_owned(),
            lines: section.lines,
            table: section.table,
            pictures: Vec::new(),
        })
        .collect();
    if let Some(first) = parts.first_mut() {
        first.pictures = pictures(&evidence.asked, decision)?;
    }
    let title = format!("What to deploy of {}", evidence.about.model);
    Ok(paper(&title, &verdict(evidence, decision), &parts))
}

/// Loss against time and against parameters, drawn.
#[cfg(feature = "plots")]
fn pictures(asked: &Asked, decision: &Decision) -> Result<Vec<(Chart, String)>, Failure> {
    let charts = fronts(asked, decision);
    let drawn = overdrive::report::drawing::draw(&charts).map_err(Failure::harness)?;
    Ok(charts.into_iter().zip(drawn.into_iter().map(|picture| picture.svg)).collect())
}

/// A build without an engine for charts has the table alone.
#[cfg(not(feature = "plots"))]
fn pictures(_: &Asked, _: &Decision) -> Result<Vec<(Chart, String)>, Failure> {
    Ok(Vec::new())
}

#[cfg(feature = "plots")]
fn fronts(asked: &Asked, decision: &Decision) -> Vec<Chart> {
    let float = decision.tried.first().and_then(|float| float.bytes).unwrap_or(1).max(1);
    let of = |cost: &dyn Fn(&Tried) -> Option<f64>| -> Vec<FrontPoint> {
        let known = decision.tried.iter().filter_map(|one| {
            let judged = one.judged.as_ref().or(one.chosen_by.as_ref())?;
            let lost = judged.lost;
            let (name, on_front) = (one.form.name.clone(), one.on_front);
            lost[0].is_finite().then_some(())?;
            Some(FrontPoint { name, cost: cost(one)?, lost, on_front })
        });
        known.collect()
    };
    let unit = asked.metric.unit_of_loss();
    let time = front(&of(&|one| one.time.map(|time| time[0])), "time", unit);
    let bytes = |one: &Tried| one.bytes.map(|bytes| bytes as f64 / float as f64);
    let size = front(&of(&bytes), "parameters", unit);
    time.into_iter().chain(size).collect()
}

/// All of the page. The decision comes last, so that a terminal still shows it at the end.
pub(super) fn sections(evidence: &Evidence, decision: &Decision) -> Vec<Section> {
    let (lines, table) = tried(&evidence.asked, decision);
    let mut all = vec![Section { title: "What was tried", lines, table: Some(table) }];
    all.extend(sensitive(evidence));
    all.push(Section { title: DECISION, lines: verdict(evidence, decision), table: None });
    all.push(Section { title: "How it was found", lines: about(evidence, decision), table: None });
    all
}

/// The decision, in sentences.
pub(super) fn verdict(evidence: &Evidence, decision: &Decision) -> Vec<String> {
    let asked = &evidence.asked;
    let (limit, unit) = (asked.limit, asked.metric.unit_of_loss());
    let name = |form: &Option<Form>| form.as_ref().map_or(String::new(), Form::said);
    let mut lines = Vec::new();
    match decision.outcome {
        Outcome::Taken => {
            let taken = decision.taken().expect("what is taken was tried");
            lines.push(format!("PASS: deploy {}", taken.form.said()));
            lines.push(gains(asked, taken, decision));
            lines.extend(taken.judged.as_ref().map(|judged| lost(asked, judged)));
        }
        Outcome::KeepFloat => {
            let what = match asked.target {
                Target::Latency | Target::Throughput => "faster",
                Target::Memory | Target::Size => "smaller",
            };
            lines.push(format!(
                "keep the float model: nothing that was tried is {what} beyond doubt"
            ));
        }
        Outcome::NoneWithin => {
            lines.push(format!(
                "FAIL: no better form loses at most {limit} {unit}; nothing was written"
            ));
            if let Some(nearest) = decision.taken() {
                let lost = nearest.lost().map_or(String::new(), |lost| format!("{lost:.4} {unit}"));
                lines.push(format!("nearest: {}, which loses {lost}", nearest.form.said()));
                lines.push(gains(asked, nearest, decision));
            }
        }
        Outcome::Undecided if decision.form.is_none() => lines
            .push("UNDECIDED: what may be better was not judged; nothing was written".to_owned()),
        Outcome::Undecided => {
            let form = name(&decision.form);
            lines.push(format!(
                "UNDECIDED: {form} may lose more than {limit} {unit}; nothing was written"
            ));
            if let Some(judged) = decision.taken().and_then(|tried| tried.judged.as_ref()) {
                lines.push(lost(asked, judged));
                lines.push(undecided(evidence, judged));
            }
        }
        Outcome::Unfinished => {
            let best = decision.form.as_ref();
            let best = best.map_or(String::new(), |form| format!("; best so far: {}", form.said()));
            lines.push(format!("the search did not come to a verdict{best}"));
        }
    }
    if let Some(reference) = decision.taken().or(decision.tried.first()) {
        lines.extend(decision.tried.iter().filter_map(|other| beside(reference, other)));
    }
    if !decision.whole && decision.outcome != Outcome::Unfinished {
        lines.push(
            "the time was over before everything was tried: --resume with more --minutes goes on"
                .to_owned(),
        );
    }
    lines
}

/// The thing that is timed, in words.
fn timed(asked: &Asked) -> String {
    match asked.decode {
        Some(before) => format!("a token after {before}"),
        None => "a call".to_owned(),
    }
}

/// The gains of a form over the float model.
fn gains(asked: &Asked, tried: &Tried, decision: &Decision) -> String {
    let mut parts = Vec::new();
    if let (Some([value, low, high]), Some(ns)) = (tried.time, tried.time_ns) {
        let time = digits::time(ns, None);
        let timed = timed(asked);
        parts.push(format!("{timed} takes {time}, {value:.3}x [{low:.3}, {high:.3}] of float's"));
    }
    let float = decision.tried.first();
    if let (Some(bytes), Some(before)) = (tried.bytes, float.and_then(|float| float.bytes)) {
        let share = bytes as f64 / before.max(1) as f64;
        parts.push(format!("parameters {}, {share:.3}x", digits::bytes(bytes)));
    }
    if let (Some(bytes), Some(before)) = (tried.peak_bytes, float.and_then(|f| f.peak_bytes)) {
        let share = bytes as f64 / before.max(1) as f64;
        parts.push(format!("memory {}, {share:.3}x", digits::bytes(bytes)));
    }
    parts.join("; ")
}

/// The form beside the float model in another engine, timed in the same session.
fn beside(taken: &Tried, other: &Tried) -> Option<String> {
    let (Fate::Beside, Some(ours), Some(theirs)) = (&other.fate, taken.time, other.time) else {
        return None;
    };
    let (engine, time) = (&other.form.name, digits::time(other.time_ns?, None));
    let times = [theirs[0] / ours[0], theirs[1] / ours[2], theirs[2] / ours[1]];
    Some(format!(
        "{engine} takes {time} for the float model: {:.2}x [{:.2}, {:.2}] of {}",
        times[0],
        times[1],
        times[2],
        taken.form.said()
    ))
}

/// The loss of a judged form, with the flips.
fn lost(asked: &Asked, judged: &Judgement) -> String {
    let (metric, unit) = (asked.metric.name(), asked.metric.unit_of_loss());
    let [value, low, high] = judged.lost;
    let mut text = format!(
        "{metric}: loses {value:.4} {unit} [{low:.4}, {high:.4}] of at most {}, on {} samples that \
         nothing else saw",
        asked.limit, judged.samples
    );
    if let Some(flips) = judged.flips {
        let _ = write!(
            text,
            "; {} right answers turned wrong, {} wrong ones right",
            flips.lost, flips.won
        );
    }
    text
}

/// The groups of layers that cost most, dearest first.
fn sensitive(evidence: &Evidence) -> Option<Section> {
    let parts = evidence.record.parts.values().next_back()?;
    let mut rows: Vec<(&str, &str, f64, u64)> = Vec::new();
    for (group, modes) in &parts.lost {
        for (mode, &lost) in modes {
            let bytes = parts.bytes.get(group).and_then(|modes| modes.get(mode));
            rows.push((group, mode, lost, bytes.copied().unwrap_or(0)));
        }
    }
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    let all = rows.len();
    if all == 0 {
        return None;
    }
    let columns = [
        ("layers from", Align::Left),
        ("mode", Align::Left),
        ("lost", Align::Right),
        ("bytes", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for (group, mode, lost, bytes) in rows.into_iter().take(SENSITIVE) {
        table.push(vec![
            group.to_owned(),
            mode.to_owned(),
            format!("{lost:.5}"),
            digits::bytes(bytes),
        ]);
    }
    let lines = vec![format!(
        "the {} dearest of {all}, each alone in its mode; layers that read one value have one mode",
        SENSITIVE.min(all)
    )];
    Some(Section { title: "Layers that are sensitive", lines, table: Some(table) })
}

/// The model and data, the machine, and how to repeat the run.
fn about(evidence: &Evidence, decision: &Decision) -> Vec<String> {
    let (about, asked) = (&evidence.about, &evidence.asked);
    let threads = match about.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    };
    let mut lines = vec![
        format!(
            "on {}, {threads}; target {} of {}, at most {} {} lost at {} confidence",
            about.device,
            format!("{:?}", asked.target).to_lowercase(),
            timed(asked),
            asked.limit,
            asked.metric.unit_of_loss(),
            1.0 - asked.error
        ),
        format!(
            "{} {} judged{}",
            decision.samples,
            about.source,
            match decision.samples_to_pass.filter(|&needed| needed > decision.samples as u64) {
                Some(needed) => format!(
                    "; at the spread that was seen about {needed} pass a form that loses nothing"
                ),
                None => String::new(),
            }
        ),
    ];
    let float = decision.tried.first();
    let bytes = float.and_then(|float| float.bytes);
    if let (Some(bounds), Some(ns), Some(bytes)) =
        (evidence.bounds, float.and_then(|float| float.time_ns), bytes)
    {
        lines.push(bounds.said(&timed(asked), ns, bytes));
    }
    lines.push(format!("`{}`", evidence.command));
    lines
}
