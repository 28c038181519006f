//! One study: its table, its side tables, and its notes.

use std::collections::BTreeMap;

use super::captioned::Captioned;
use super::judged::{JudgedResults, JudgedRow};
use super::ladders::table as ladder;
use super::overview::word;
use super::side_tables;
use super::to_loss;
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::record::Record;
use overdrive_bench::speedup::Speedup;
use overdrive_bench::statistics::geometric_mean;
use overdrive_bench::table::{Align, Table, UNKNOWN, cell};

/// The section of a report on one study.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) tables: Vec<Captioned>,
    pub(super) ladders: Vec<Captioned>,
    pub(super) remarks: Vec<String>,
}

/// The section of `study`.
pub(super) fn section(judged: &JudgedResults<'_>, study: &str) -> Section {
    let results = judged.results;
    let compared = judged.study(study);
    let origin = results.imported.as_deref();
    let mut tables = vec![main_table(&compared, origin)];
    tables.extend(side_tables::variants(judged, &compared));
    tables.extend(to_loss::table(&compared));
    tables.extend(side_tables::overhead(&compared));
    tables.extend(side_tables::memory(&compared));
    tables.extend(side_tables::copies(&compared));
    tables.extend(side_tables::energy(&compared));
    tables.extend(side_tables::quantities(&compared).map(|table| match origin {
        Some(_) => Captioned { caption: "Imported quantities.".to_owned(), ..table },
        None => table,
    }));
    let mut remarks = means(&compared);
    remarks.extend(compared.iter().copied().filter_map(refusal));
    let mut ladders = Vec::new();
    for key in &results.ladders {
        let first = key.rungs.first().and_then(|rung| judged.find(&rung.case));
        if first.is_some_and(|row| row.record.case.study == study) {
            match ladder(judged, key) {
                Ok(table) => ladders.push(table),
                Err(reason) => remarks.push(format!("{}: {reason}", key.title)),
            }
        }
    }
    remarks.extend(
        results.notes.iter().filter(|note| note.study == study).map(|note| note.text.clone()),
    );
    Section { title: study.to_owned(), tables, ladders, remarks }
}

/// The cases with their times; `origin` is where they were imported from, if they were.
fn main_table(compared: &[&JudgedRow<'_>], origin: Option<&str>) -> Captioned {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Time per call [95 %]", Right),
        ("n", Right),
        ("Speed-up [95 %]", Right),
        ("Verdict", Left),
        ("Throughput", Right),
        ("FLOP/s", Right),
        ("Of ceiling", Right),
        ("Status", Left),
    ]);
    for row in compared {
        let JudgedRow { record, gain, .. } = row;
        let measurement = record.outcome.measurement();
        let (figure, said) = match gain {
            Some(Ok(gain)) => (gain.figure(), word(gain.verdict()).to_owned()),
            Some(Err(_)) if measurement.is_some() => (UNKNOWN.to_owned(), "no claim".to_owned()),
            None if row.is_baseline => (UNKNOWN.to_owned(), "baseline".to_owned()),
            _ => (UNKNOWN.to_owned(), UNKNOWN.to_owned()),
        };
        table.push(vec![
            record.case.workload.to_string(),
            row.label.clone(),
            cell(measurement.and_then(Measurement::printed_time)),
            cell(measurement.and_then(count)),
            figure,
            said,
            cell(measurement.and_then(throughput)),
            cell(measurement.and_then(arithmetic)),
            cell(measurement.and_then(ceiling_share)),
            status(record),
        ]);
    }
    let ran = compared.iter().filter(|c| c.record.outcome.measurement().is_some()).count();
    let all = compared.len();
    let caption = match origin {
        Some(origin) => format!(
            "{ran} of {all} have figures, all imported from {origin}; nothing was run here. Lower \
             times are better."
        ),
        None => format!(
            "{ran} of {all} ran. Times and ratios are measured; FLOPs per call are the graph's \
             own count. Lower times are better."
        ),
    };
    Captioned { caption, table: table.without_unknown_columns() }
}

pub(super) fn count(measurement: &Measurement) -> Option<String> {
    let reported = || measurement.reported.as_ref()?.count;
    let count =
        measurement.latency.as_ref().map(|series| series.summary.count as u64).or_else(reported);
    count.map(|count| count.to_string())
}

pub(super) fn throughput(measurement: &Measurement) -> Option<String> {
    let items = measurement.work.as_ref()?.items.as_ref()?;
    let rate = measurement.throughput()?;
    let half_width = rate.interval.map(|(low, high)| (high - low) / 2.0);
    Some(digits::rate(rate.per_second, half_width, &items.name))
}

pub(super) fn arithmetic(measurement: &Measurement) -> Option<String> {
    let flops = measurement.work.as_ref()?.flops;
    let median_ns = measurement.latency.as_ref()?.summary.median_ns;
    (flops > 0).then(|| digits::rate(flops as f64 / (median_ns * 1e-9), None, "FLOP"))
}

/// The ceiling that is nearest, since that is the one that limits.
fn ceiling_share(measurement: &Measurement) -> Option<String> {
    let nearest = measurement.ceiling_shares.iter().max_by(|a, b| a.share.total_cmp(&b.share))?;
    let above = if nearest.share > 1.0 { ", above it" } else { "" };
    Some(format!("{:.0} % of {}{above}", 100.0 * nearest.share, nearest.ceiling))
}

/// `ok`, the statuses, or why there is no figure.
pub(super) fn status(record: &Record) -> String {
    if let Some(failure) = record.outcome.failure() {
        return failure.to_string();
    }
    let statuses =
        record.outcome.measurement().map_or(&[][..], |measurement| &measurement.statuses);
    if statuses.is_empty() {
        return "ok".to_owned();
    }
    statuses.iter().map(|status| status.kind.to_string()).collect::<Vec<_>>().join(", ")
}

/// A geometric mean for each pair of configurations that was compared on several workloads.
fn means(compared: &[&JudgedRow<'_>]) -> Vec<String> {
    let mut pairs: BTreeMap<(String, String), Vec<Option<f64>>> = BTreeMap::new();
    for row in compared {
        let Some(over) = &row.over else { continue };
        let pair = (row.label.clone(), over.clone());
        let ratio = row.speedup().map(Speedup::ratio);
        pairs.entry(pair).or_default().push(ratio);
    }
    let sentence = |((variant, baseline), ratios): ((String, String), Vec<Option<f64>>)| {
        let known: Vec<f64> = ratios.iter().copied().flatten().collect();
        let mean = geometric_mean(&known)?;
        (mean.count > 1).then(|| {
            format!(
                "`{variant}` over `{baseline}`: geometric mean {:.2}x of {} workloads ({:.2}x to \
                 {:.2}x), {} of {} compared",
                mean.mean,
                mean.count,
                mean.min,
                mean.max,
                mean.count,
                ratios.len()
            )
        })
    };
    pairs.into_iter().filter_map(sentence).collect()
}

/// Why a comparison that was asked for gave no figure.
fn refusal(compared: &JudgedRow<'_>) -> Option<String> {
    let refused = compared.gain.as_ref()?.as_ref().err()?;
    // A case without a figure has said why in its row.
    compared.record.outcome.measurement()?;
    let case = &compared.record.case;
    let reasons: Vec<String> = refused.reasons.iter().map(ToString::to_string).collect();
    Some(format!(
        "No claim for `{}` on `{}`: {}",
        compared.label,
        case.workload,
        reasons.join("; ")
    ))
}
