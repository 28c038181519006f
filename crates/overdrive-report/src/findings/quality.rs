//! The most accurate model, the smallest file, and models that lost quality.
//!
//! One sample of 360 makes nobody the most accurate: a difference counts where an interval excludes
//! 0.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed};
use super::win::{Win, least, sentences};
use crate::quality;
use overdrive_bench::digits;
use overdrive_bench::quality::{Difference, FAR, Measure, metrics};

/// The quantity that says how large a model is on disk.
pub(crate) const FILE_BYTES: &str = "file_bytes";

/// The best by each metric, if it is better than all others; the smallest file; and losses of
/// quality.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = metrics().flat_map(|metric| best(judged, metric)).collect();
    let wins = candidates(judged, FILE_BYTES).filter_map(smallest).collect();
    found.extend(sentences(Topic::Quality, "the smallest file has", wins));
    found.extend(metrics().flat_map(|metric| lost(judged, metric)));
    found
}

/// Who is better than every other by an interval.
fn best(judged: &JudgedResults<'_>, metric: &Measure) -> Vec<Finding> {
    let wins = candidates(judged, metric.quantity).filter_map(|candidates| {
        let better = |row: &JudgedRow<'_>, other: &JudgedRow<'_>| {
            row.id == other.id
                || quality::difference(metric, row, other) == Some(Difference::Better)
        };
        let winner =
            *candidates.iter().find(|row| candidates.iter().all(|other| better(row, other)))?;
        let reading = metric.read(winner.measurement()?)?;
        let figure = format!("{}, best of {}", metric.figure(&reading), candidates.len());
        Some(Win { winner, candidates, figure, weight: 0.0 })
    });
    sentences(Topic::Quality, &format!("the best {} has", metric.title), wins.collect())
}

/// The smallest file, with its quality.
fn smallest<'j, 'r>(candidates: Vec<&'j JudgedRow<'r>>) -> Option<Win<'j, 'r>> {
    let bytes = |row: &JudgedRow<'_>| quantity(row, FILE_BYTES).unwrap_or(f64::INFINITY);
    let winner = least(&candidates, bytes);
    let largest = least(&candidates, |row| -bytes(row));
    let alone = candidates.iter().filter(|row| bytes(row) == bytes(winner)).count() == 1;
    let measurement = winner.measurement()?;
    let quality = metrics().find_map(|metric| Some((metric, metric.read(measurement)?)));
    let quality = quality
        .map(|(metric, reading)| format!(" at {} {}", metric.title, metric.figure(&reading)))
        .unwrap_or_default();
    let size = |row: &JudgedRow<'_>| digits::bytes(bytes(row) as u64);
    let figure =
        format!("{}, least of {} up to {}{quality}", size(winner), candidates.len(), size(largest));
    alone.then_some(Win { winner, candidates, figure, weight: 0.0 })
}

/// Rows that are worse than their baseline: by an interval, or by far where nobody recorded one.
fn lost(judged: &JudgedResults<'_>, metric: &Measure) -> Vec<Finding> {
    let told = |row: &JudgedRow<'_>| {
        let baseline = judged.find(row.record.baseline.as_deref()?)?;
        let doubt = match quality::difference(metric, row, baseline)? {
            Difference::Worse => "",
            Difference::FarWorse => FAR,
            Difference::Better | Difference::Unknown => return None,
        };
        let case = &row.record.case;
        let course = quality::course(metric, row, baseline)?;
        let text =
            format!("`{}` on `{}`: {} {course}{doubt}", row.label, case.workload, metric.title);
        Some((baseline, text))
    };
    let groups = by(judged, |row| told(row).map(|_| row.record.case.study.clone()));
    let sentence = |(study, rows): (String, Vec<&JudgedRow<'_>>)| {
        let (baselines, items): (Vec<&JudgedRow<'_>>, Vec<String>) =
            rows.iter().filter_map(|row| told(row)).unzip();
        let text = format!("{study}: {}.", listed(&items));
        Finding::new(Topic::QualityLost, text, rows.into_iter().chain(baselines))
    };
    groups.into_iter().map(sentence).collect()
}

/// The rows of each workload that have this quantity, two or more.
fn candidates<'j, 'r>(
    judged: &'j JudgedResults<'r>,
    name: &str,
) -> impl Iterator<Item = Vec<&'j JudgedRow<'r>>> + use<'j, 'r> {
    let groups = by(judged, |row| {
        quantity(row, name)?;
        Some((row.record.case.study.clone(), row.record.case.workload.clone()))
    });
    groups.into_values().filter(|candidates| candidates.len() > 1)
}

/// A quantity of a row.
pub(super) fn quantity(row: &JudgedRow<'_>, name: &str) -> Option<f64> {
    row.measurement()?.quantities.get(name).copied()
}
