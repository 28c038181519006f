//! The data that the template is given: texts, numbers to sort by, places in per cent. Everything
//! is worked out here, so that the template only places it.

use serde::Serialize;

use super::decided::{self, DecisionView};
use super::tabled::{TableView, table};
use crate::charts::{Chart, SCRIPT, Switch};
use crate::files::{File, Report};
use crate::findings::Finding;
use crate::judged::JudgedRow;
use crate::{findings, markdown, overview, section};
use overdrive_bench::measurement::Measurement;
use overdrive_bench::speedup::{Speedup, Verdict};
use overdrive_bench::table::UNKNOWN;
use std::collections::BTreeMap;

/// Still pictures of the charts by [`Chart::id`](crate::charts::Chart::id), as SVG in the light
/// palette. A chart without one is drawn only where there is JavaScript.
pub type Stills = BTreeMap<String, String>;

#[derive(Serialize)]
pub(super) struct FileView {
    prefix: String,
    machine: String,
    verdict: String,
    screening: bool,
    notes: Vec<String>,
    decision: DecisionView,
    leading: Vec<ChartView>,
    strip: Vec<LineView>,
    findings: Vec<FindingView>,
    more_findings: Vec<FindingView>,
    kinds: Vec<KindView>,
    rows: Vec<RowView>,
    scale: Option<SpeedupScale>,
    studies: Vec<StudyView>,
    ceilings: Option<TableView>,
    commands: String,
}

#[derive(Serialize)]
struct LineView {
    name: &'static str,
    text: String,
}

#[derive(Serialize)]
struct FindingView {
    sentence: String,
    anchors: Vec<String>,
}

#[derive(Serialize)]
struct KindView {
    name: &'static str,
    label: &'static str,
    count: usize,
}

#[derive(Serialize)]
struct RowView {
    anchor: String,
    index: usize,
    study: String,
    workload: String,
    configuration: String,
    kind: &'static str,
    time: String,
    time_ns: Option<f64>,
    n: String,
    gain: String,
    ratio: Option<f64>,
    forest: Option<Forest>,
    verdict: &'static str,
    rate: String,
    per_second: Option<f64>,
    status: String,
}

/// The place of a speed-up and its interval in their cell, in per cent of its width.
#[derive(Serialize)]
struct Forest {
    low: f64,
    width: f64,
    at: f64,
}

/// The logarithmic scale that all speed-ups of a file share, and where 1 stands on it.
#[derive(Serialize, Clone, Copy)]
struct SpeedupScale {
    one: f64,
    #[serde(skip)]
    low: f64,
    #[serde(skip)]
    high: f64,
}

#[derive(Serialize)]
struct StudyView {
    id: String,
    name: String,
    remarks: Vec<String>,
    charts: Vec<ChartView>,
    tables: Vec<SideView>,
}

#[derive(Serialize)]
struct SideView {
    caption: String,
    table: TableView,
}

#[derive(Serialize)]
pub(super) struct ChartView {
    id: String,
    title: String,
    caption: String,
    summary: String,
    height: u32,
    wide: bool,
    switch: Option<&'static str>,
    svg: minijinja::Value,
}

/// Every file of the report.
pub(super) fn files(report: &Report<'_>, stills: &Stills) -> Vec<FileView> {
    report.files.iter().map(|file| view(file, stills)).collect()
}

fn view(file: &File<'_>, stills: &Stills) -> FileView {
    let judged = &file.judged;
    let scale = scale(judged.rows.iter().filter_map(JudgedRow::speedup));
    let rows: Vec<RowView> =
        judged.rows.iter().enumerate().map(|(i, row)| self::row(file, i, row, scale)).collect();
    let kinds = [
        ("faster", "faster"),
        ("slower", "slower"),
        ("even", "no difference"),
        ("screened", "not judged"),
        ("blocked", "no claim"),
        ("baseline", "baseline"),
        ("alone", "not compared"),
        ("failed", "no figure"),
    ];
    let kinds = kinds.into_iter().map(|(name, label)| KindView {
        name,
        label,
        count: rows.iter().filter(|row| row.kind == name).count(),
    });
    let (shown, more) = findings::in_sight(&file.findings);
    FileView {
        prefix: file.prefix.clone(),
        machine: file.machine.clone(),
        verdict: overview::verdict(judged),
        screening: file.decision.screening.is_some(),
        notes: file
            .decision
            .screening
            .map(str::to_owned)
            .into_iter()
            .chain(overview::warnings(judged.results))
            .collect(),
        decision: decided::view(file),
        leading: file.leading.iter().map(|chart| chart_view(chart, stills)).collect(),
        strip: overview::strip(judged.results)
            .into_iter()
            .map(|(name, text)| LineView { name, text: text.replace('`', "") })
            .collect(),
        findings: shown.into_iter().map(|finding| self::finding(file, finding)).collect(),
        more_findings: more.into_iter().map(|finding| self::finding(file, finding)).collect(),
        kinds: kinds.filter(|kind| kind.count > 0).collect(),
        rows,
        scale,
        studies: judged
            .results
            .studies()
            .into_iter()
            .map(|name| study(file, name, stills))
            .collect(),
        ceilings: (!judged.results.ceilings.is_empty())
            .then(|| table(&markdown::ceilings(judged.results))),
        commands: markdown::distinct_commands(judged.results).join("\n"),
    }
}

fn finding(file: &File<'_>, finding: &Finding) -> FindingView {
    let anchors =
        finding.anchors(&file.judged).into_iter().map(|anchor| format!("{}{anchor}", file.prefix));
    FindingView { sentence: finding.sentence.clone(), anchors: anchors.collect() }
}

fn study(file: &File<'_>, name: &str, stills: &Stills) -> StudyView {
    let section = section::section(&file.judged, name);
    let charts =
        file.charts.iter().filter(|(study, _)| study == name).flat_map(|(_, charts)| charts);
    StudyView {
        id: format!("{}study-{}", file.prefix, super::super::anchor(name)),
        name: name.to_owned(),
        remarks: section.remarks,
        charts: charts.map(|chart| chart_view(chart, stills)).collect(),
        // The first table is the study's part of the table of cases.
        tables: section
            .tables
            .into_iter()
            .skip(1)
            .chain(section.ladders)
            .map(|side| SideView { table: table(&side.table), caption: side.caption })
            .collect(),
    }
}

fn row(file: &File<'_>, index: usize, row: &JudgedRow<'_>, scale: Option<SpeedupScale>) -> RowView {
    let measurement = row.measurement();
    let series = measurement.and_then(|m| m.latency.as_ref());
    let gain = row.speedup();
    let (kind, verdict) = judgement(row);
    let case = &row.record.case;
    let known = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    let rate = measurement.and_then(|m| section::throughput(m).or_else(|| section::arithmetic(m)));
    let per_second = measurement.and_then(|m| {
        let flops =
            || Some(m.work.as_ref()?.flops as f64 / (m.latency.as_ref()?.summary.median_ns * 1e-9));
        m.throughput().map(|rate| rate.per_second).or_else(flops)
    });
    RowView {
        anchor: format!("{}{}", file.prefix, row.anchor),
        index,
        study: case.study.clone(),
        workload: case.workload.to_string(),
        configuration: row.label.clone(),
        kind,
        time: known(measurement.and_then(Measurement::printed_time)),
        time_ns: series.map(|series| series.summary.median_ns),
        n: known(measurement.and_then(section::count)),
        gain: known(gain.map(Speedup::figure)),
        ratio: gain.map(Speedup::ratio),
        forest: gain.zip(scale).map(|(gain, scale)| scale.forest(gain)),
        verdict,
        rate: known(rate),
        per_second,
        status: section::status(row.record),
    }
}

/// The class of a row, by which it is coloured and filtered, and its word.
fn judgement(row: &JudgedRow<'_>) -> (&'static str, &'static str) {
    if row.measurement().is_none() {
        return ("failed", UNKNOWN);
    }
    match &row.gain {
        Some(Ok(gain)) => match gain.verdict() {
            Verdict::Investigate => ("slower", overview::word(Verdict::Investigate)),
            verdict @ Verdict::Undecided => ("even", overview::word(verdict)),
            verdict @ Verdict::Screening => ("screened", overview::word(verdict)),
            verdict => ("faster", overview::word(verdict)),
        },
        Some(Err(_)) => ("blocked", "no claim"),
        None if row.is_baseline => ("baseline", "baseline"),
        None => ("alone", UNKNOWN),
    }
}

fn scale<'g>(gains: impl Iterator<Item = &'g Speedup>) -> Option<SpeedupScale> {
    let (low, high) = gains.fold((f64::INFINITY, 0.0_f64), |(low, high), gain| {
        (low.min(gain.interval().low), high.max(gain.interval().high))
    });
    if high <= 0.0 {
        return None;
    }
    let (low, high) = (low.min(0.8).ln() - 0.05, high.max(1.25).ln() + 0.05);
    Some(SpeedupScale { one: round(-100.0 * low / (high - low)), low, high })
}

impl SpeedupScale {
    fn place(self, ratio: f64) -> f64 {
        100.0 * (ratio.ln() - self.low) / (self.high - self.low)
    }

    fn forest(self, gain: &Speedup) -> Forest {
        let [low, at, high] =
            [gain.interval().low, gain.ratio(), gain.interval().high].map(|x| self.place(x));
        Forest { low: round(low), width: round(high - low), at: round(at) }
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

pub(super) fn chart_view(chart: &Chart, stills: &Stills) -> ChartView {
    ChartView {
        id: chart.id.clone(),
        title: chart.title.clone(),
        caption: chart.caption.clone(),
        summary: chart.summary.clone(),
        height: chart.height,
        wide: chart.is_wide(),
        switch: chart.switch.map(|switch| match switch {
            Switch::X => "x",
            Switch::Y => "y",
        }),
        svg: minijinja::Value::from_safe_string(
            stills.get(&chart.id).map_or(String::new(), |svg| themed(svg)),
        ),
    }
}

/// The picture with the page's colours instead of the light palette's, so that it is dark on a dark
/// page.
pub(super) fn themed(svg: &str) -> String {
    palette()
        .fold(svg.to_owned(), |svg, (name, value)| svg.replace(value, &format!("var(--{name})")))
}

/// The light palette, from where it is written: `charts.js`.
fn palette() -> impl Iterator<Item = (&'static str, &'static str)> {
    let inside = SCRIPT
        .split_once("const LIGHT = {")
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or("", |(inside, _)| inside);
    inside.split(',').filter_map(|entry| {
        let (name, value) = entry.split_once(':')?;
        Some((name.trim(), value.trim().trim_matches('\'')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_charts_have_one_palette() {
        let names: Vec<&str> = palette().map(|(name, _)| name).collect();
        assert!(names.len() >= 14 && names.contains(&"ink") && names.contains(&"bad"), "{names:?}");
        for (name, value) in palette() {
            let said = format!("--{name}: {value};");
            assert!(super::super::STYLE.contains(&said), "style.css does not say `{said}`");
        }
        let distinct: std::collections::BTreeSet<&str> =
            palette().map(|(_, value)| value).collect();
        assert_eq!(distinct.len(), names.len(), "each colour names one variable");
    }
}
