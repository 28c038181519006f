//! The page of a decision: what was decided, everything that was tried, which layers are
//! sensitive, and how to repeat it. On the terminal, and as Markdown.

use super::evidence::Evidence;
use super::ladder::ladder;
use super::matrix::{matrix, short};
use super::mixes::mixes;
use super::verdict::{timed, verdict};
use crate::failure::Failure;
use crate::terminal::width;
use overdrive::bench::digits;
use overdrive::bench::table::{Align, Table, indented, markdown_table, terminal_table};
#[cfg(feature = "plots")]
use overdrive::optimize::Tried;
use overdrive::optimize::{Asked, Decision, LossSource};
#[cfg(feature = "plots")]
use overdrive::report::charts::Chart;
#[cfg(feature = "plots")]
use overdrive::report::charts::{FrontPoint, front};
#[cfg(feature = "plots")]
use overdrive::report::drawing::{draw, draw_narrow};
use overdrive::report::html::{Part, StillChart, paper};

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
    let mut text =
        format!("# {}\n\nMeasured on {}.\n\n", title(evidence), evidence.about.machine());
    for section in page(evidence, decision) {
        text += &section.markdown();
    }
    text
}

/// The page as HTML.
pub(super) fn html(evidence: &Evidence, decision: &Decision) -> Result<String, Failure> {
    let mut parts: Vec<Part> = page(evidence, decision)
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
    let measured_on = format!("Measured on {}.", evidence.about.machine());
    Ok(paper((&title(evidence), &measured_on), &verdict(evidence, decision), &parts))
}

fn title(evidence: &Evidence) -> String {
    format!("What to deploy of {}", evidence.about.model)
}

/// Loss against time and against parameters, drawn.
#[cfg(feature = "plots")]
fn pictures(asked: &Asked, decision: &Decision) -> Result<Vec<StillChart>, Failure> {
    let charts = fronts(asked, decision);
    let drawn = draw(&charts).map_err(Failure::harness)?.into_iter().map(|picture| picture.svg);
    let narrow = draw_narrow(&charts).map_err(Failure::harness)?;
    let still = |(chart, (svg, narrow))| StillChart { chart, svg, narrow };
    Ok(charts.into_iter().zip(drawn.zip(narrow)).map(still).collect())
}

/// A build without an engine for charts has the table alone.
#[cfg(not(feature = "plots"))]
fn pictures(_: &Asked, _: &Decision) -> Result<Vec<StillChart>, Failure> {
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

/// All of the page, the decision first.
fn page(evidence: &Evidence, decision: &Decision) -> Vec<Section> {
    let asked = &evidence.asked;
    let tabled = |title, (lines, table)| Section { title, lines, table: Some(table) };
    let mut all =
        vec![Section { title: DECISION, lines: verdict(evidence, decision), table: None }];
    all.push(tabled("Decision matrix", matrix(asked, decision)));
    all.extend(ladder(asked, decision).map(|found| tabled("What each step gave", found)));
    all.extend(mixes(asked, decision).map(|found| tabled("Mixes, predicted and measured", found)));
    all.extend(sensitive(evidence));
    all.push(Section { title: "How it was found", lines: about(evidence, decision), table: None });
    all
}

/// The part of it that a terminal shows. The decision comes last, so that it is still in sight at
/// the end.
pub(super) fn sections(evidence: &Evidence, decision: &Decision) -> Vec<Section> {
    let (lines, table) = short(&evidence.asked, decision);
    let mut all = vec![Section { title: "Decision matrix", lines, table: Some(table) }];
    all.extend(sensitive(evidence));
    all.push(Section { title: DECISION, lines: verdict(evidence, decision), table: None });
    all.push(Section { title: "How it was found", lines: about(evidence, decision), table: None });
    all
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
    let how = match parts.source {
        LossSource::Scanned => "",
        LossSource::Estimated => ", estimated by gradients, for a scan did not fit the time",
    };
    let lines = vec![format!(
        "the {} dearest of {all}, each alone in its mode{how}; layers that read one value have one \
         mode",
        SENSITIVE.min(all)
    )];
    Some(Section { title: "Layers that are sensitive", lines, table: Some(table) })
}

/// The model and data, the machine, and how to repeat the run.
fn about(evidence: &Evidence, decision: &Decision) -> Vec<String> {
    let (about, asked) = (&evidence.about, &evidence.asked);
    let mut lines = vec![
        format!(
            "on {}; target {} of {}, at most {} {} lost at {} confidence",
            about.machine(),
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
