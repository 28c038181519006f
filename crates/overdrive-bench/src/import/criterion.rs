//! criterion.rs: the files below `target/criterion` and the messages of `cargo criterion`.
//!
//! A sample is a number of iterations and the time that they took together; in criterion's linear
//! mode the number grows from sample to sample. Each sample is kept as its time per iteration.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::draft::{Draft, configuration, malformed, outcome};
use super::error::ImportError;
use super::format::Format;
use crate::case::Workload;
use crate::failure::Failure;
use crate::outcome::Outcome;
use crate::reported::{Kept, Reported};
use crate::results::Results;

const TOOL: &str = "criterion.rs";
const STUDY: &str = "criterion";
const MISSING: &str = "there is no finished benchmark";
/// Groups, functions and parameters are folders; deeper ones are none of criterion's.
const MAX_DEPTH: usize = 6;
/// Benchmarks in a folder, at most.
const MAX_BENCHMARKS: usize = 10_000;

/// `sample.json`.
#[derive(Deserialize)]
struct SampleJson {
    iters: Vec<f64>,
    times: Vec<f64>,
}

/// `estimates.json`, in nanoseconds.
#[derive(Deserialize)]
struct Estimates {
    mean: Estimate,
    median: Estimate,
    std_dev: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// `benchmark.json`.
#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
}

/// A line of `cargo criterion --message-format=json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(flatten)]
    rest: Value,
}

#[derive(Deserialize)]
struct Complete {
    id: String,
    iteration_count: Vec<f64>,
    measured_values: Vec<f64>,
    unit: String,
}

/// Every benchmark below a folder.
pub(super) fn folder(path: &Path) -> Result<Results, ImportError> {
    let mut found = Vec::new();
    find(path, MAX_DEPTH, &mut found);
    found.sort();
    let mut draft = draft(path, Format::CriterionSample);
    for folder in &found {
        benchmark(&mut draft, folder)?;
    }
    draft.finish("there is no `new/sample.json` or `new/estimates.json` below it")
}

/// Folders named `new` that hold a measurement.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        // Not through links, which may lead in a circle.
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || found.len() >= MAX_BENCHMARKS {
            continue;
        }
        let folder = entry.path();
        let measured =
            ["sample.json", "estimates.json"].iter().any(|name| folder.join(name).is_file());
        if entry.file_name() == "new" && measured {
            found.push(folder);
        } else if depth > 0 {
            find(&folder, depth - 1, found);
        }
    }
}

/// The benchmark that a `sample.json` or `estimates.json` belongs to, with the other files of
/// criterion in its folder. `None` for a file of another name.
pub(super) fn beside(path: &Path) -> Option<Result<Results, ImportError>> {
    let known =
        path.file_name().is_some_and(|name| name == "sample.json" || name == "estimates.json");
    let folder = path.parent().filter(|_| known)?;
    let mut draft = draft(path, Format::CriterionSample);
    Some(benchmark(&mut draft, folder).and_then(|()| draft.finish(MISSING)))
}

/// The record of one benchmark: from its samples, or from estimates where there are none.
fn benchmark(draft: &mut Draft<'_>, folder: &Path) -> Result<(), ImportError> {
    let named: Option<Benchmark> = part(folder, "benchmark.json", Format::CriterionEstimates)?;
    let name = named.map_or_else(|| name_of(folder), |benchmark| benchmark.full_id);
    let sample: Option<SampleJson> = part(folder, "sample.json", Format::CriterionSample)?;
    let outcome = match sample {
        Some(sample) => sampled(&sample.iters, &sample.times),
        None => match part(folder, "estimates.json", Format::CriterionEstimates)? {
            Some(estimates) => estimated(&estimates),
            None => return Ok(()),
        },
    };
    add(draft, name, outcome);
    Ok(())
}

/// A file of the folder, if it is there.
fn part<T: for<'d> Deserialize<'d>>(
    folder: &Path,
    name: &str,
    format: Format,
) -> Result<Option<T>, ImportError> {
    let path = folder.join(name);
    match overdrive_files::read_text(&path, overdrive_files::RESULTS) {
        Ok(text) => {
            serde_json::from_str(&text).map(Some).map_err(|reason| malformed(&path, format, reason))
        }
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// `function` of `target/criterion/function/new`.
fn name_of(folder: &Path) -> String {
    let parent = folder.parent().and_then(Path::file_name);
    parent.map_or_else(|| "benchmark".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The text of a `sample.json`.
pub(super) fn sample(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::CriterionSample;
    let sample: SampleJson =
        serde_json::from_str(text).map_err(|reason| malformed(path, FORMAT, reason))?;
    single(path, FORMAT, sampled(&sample.iters, &sample.times))
}

/// The text of an `estimates.json`.
pub(super) fn estimates(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::CriterionEstimates;
    let estimates = serde_json::from_str(text).map_err(|reason| malformed(path, FORMAT, reason))?;
    single(path, FORMAT, estimated(&estimates))
}

fn single(path: &Path, format: Format, outcome: Outcome) -> Result<Results, ImportError> {
    let mut draft = draft(path, format);
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    add(&mut draft, name, outcome);
    draft.finish(MISSING)
}

/// The lines of `cargo criterion --message-format=json`.
pub(super) fn messages(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::CriterionMessages;
    let mut draft = draft(path, FORMAT);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |reason: serde_json::Error| {
            malformed(path, FORMAT, format!("line {}: {reason}", number + 1))
        };
        let message: Message = serde_json::from_str(line).map_err(bad)?;
        // Messages of other reasons may be added to the format at any time.
        if message.reason == "benchmark-complete" {
            let complete: Complete = serde_json::from_value(message.rest).map_err(bad)?;
            let outcome = if complete.unit == "ns" {
                sampled(&complete.iteration_count, &complete.measured_values)
            } else {
                Failure::failed(format!("given in `{}`, which is no time", complete.unit)).into()
            };
            add(&mut draft, complete.id, outcome);
        }
    }
    draft.finish(MISSING)
}

fn draft(path: &Path, format: Format) -> Draft<'_> {
    let mut draft = Draft::new(path, format, STUDY);
    draft.note(
        "Outputs were not compared with a reference; machine, warm-up and revision are not \
                recorded.",
    );
    draft
}

fn add(draft: &mut Draft<'_>, name: String, outcome: Outcome) {
    let case = draft.case(Workload::new(name, []), configuration(TOOL));
    draft.record(case, None, outcome);
}

fn sampled(iterations: &[f64], times_ns: &[f64]) -> Outcome {
    if iterations.len() != times_ns.len() {
        let (counts, times) = (iterations.len(), times_ns.len());
        return Failure::failed(format!("{counts} counts of iterations, but {times} times")).into();
    }
    let per_call = iterations.iter().zip(times_ns).map(|(count, time)| time / count).collect();
    match Reported::samples(TOOL, Kept::Samples, per_call) {
        Ok(reported) => outcome(reported),
        Err(failure) => failure.into(),
    }
}

fn estimated(estimates: &Estimates) -> Outcome {
    outcome(Reported {
        median_ns: Some(estimates.median.point_estimate),
        standard_deviation_ns: Some(estimates.std_dev.point_estimate),
        ..Reported::summary(TOOL, estimates.mean.point_estimate)
    })
}
