//! The three reports of the suite that came before Overdrive. They hold means, or accuracies and
//! sizes, of ten runs without a warm-up kept apart; a back end that failed was written as 0.00.
//!
//! Its headlines (a fusion of 15.4x, an INT8 model larger than its baseline) came from one slow
//! first call among ten. Nobody looked. Our gate looks: mean, deviation and count are enough to see
//! it.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::draft::{Draft, configuration, malformed, outcome};
use super::error::ImportError;
use super::format::Format;
use crate::case::{Case, Workload};
use crate::failure::Failure;
use crate::measurement::Measurement;
use crate::outcome::Outcome;
use crate::reported::Reported;
use crate::results::Results;
use crate::status::{Status, StatusKind};

const TOOL: &str = "the older suite";
/// The files do not say it; the suite made ten runs of every kernel.
const RUNS: u64 = 10;
const MS: f64 = 1e6;

/// A mode of `quantization_report.json`.
#[derive(Deserialize)]
struct Mode {
    accuracy: f64,
    loss: f64,
    model_size_bytes: f64,
}

/// Mode -> accuracy, loss, size. A file that is not smaller than the baseline's is not compressed.
pub(super) fn quantization(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::Quantization;
    let modes: Vec<(String, Mode)> =
        named(text).map_err(|reason| malformed(path, FORMAT, reason))?;
    let mut draft = Draft::new(path, FORMAT, "quantization");
    let of =
        |draft: &Draft<'_>, mode: &str| draft.case(Workload::new("model", []), configuration(mode));
    let baseline = modes.iter().find(|(name, _)| name == "baseline");
    let base = baseline.map(|(name, mode)| (of(&draft, name), mode.model_size_bytes));
    for (name, mode) in &modes {
        let case = of(&draft, name);
        let outcome = quantized(mode, base.as_ref().filter(|(base, _)| *base != case));
        draft.record(case, base.as_ref().map(|(case, _)| case), outcome);
    }
    draft.note("Latency, number format and the number of evaluated samples are not recorded.");
    draft.finish("there is no mode")
}

fn quantized(mode: &Mode, baseline: Option<&(Case, f64)>) -> Outcome {
    let Mode { accuracy, loss, model_size_bytes: bytes } = *mode;
    if !(0.0..=1.0).contains(&accuracy) || !loss.is_finite() || !bytes.is_finite() || bytes < 1.0 {
        let found = format!("accuracy {accuracy}, loss {loss}, {bytes} bytes");
        return Failure::failed(format!("{TOOL} reports figures that cannot be: {found}")).into();
    }
    let quantities = [("accuracy", accuracy), ("loss", loss), ("file_bytes", bytes)];
    let larger = baseline.filter(|(_, baseline)| bytes >= *baseline).map(|(case, baseline)| {
        let against = format!("{bytes} B against {baseline} B of `{}`", case.configuration);
        Status::new(StatusKind::NotCompressed, against)
    });
    let measurement = Measurement {
        quantities: quantities.map(|(name, value)| (name.to_owned(), value)).into(),
        statuses: larger.into_iter().collect(),
        ..Measurement::default()
    };
    Ok(measurement).into()
}

/// A variant of `kernel_benchmarks.json`.
#[derive(Deserialize)]
struct SuiteKernel {
    mean_time_ms: f64,
    std_time_ms: f64,
    min_time_ms: f64,
    max_time_ms: f64,
}

/// Group -> variant -> mean, deviation and range of ten runs.
pub(super) fn kernels(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::Kernels;
    let bad = |reason: serde_json::Error| malformed(path, FORMAT, reason);
    let groups: Vec<(String, Map<String, Value>)> = named(text).map_err(bad)?;
    let mut draft = Draft::new(path, FORMAT, "kernels");
    for (group, variants) in groups {
        let variants: Vec<(String, SuiteKernel)> = entries(variants).map_err(bad)?;
        for (name, kernel) in &variants {
            let (case, baseline) = kernel_case(&draft, &group, name);
            let baseline =
                baseline.filter(|(_, name)| variants.iter().any(|(other, _)| other == name));
            let reported = Reported {
                count: Some(RUNS),
                standard_deviation_ns: Some(kernel.std_time_ms * MS),
                min_ns: Some(kernel.min_time_ms * MS),
                max_ns: Some(kernel.max_time_ms * MS),
                ..Reported::summary(TOOL, kernel.mean_time_ms * MS)
            };
            draft.record(case, baseline.as_ref().map(|(case, _)| case), outcome(reported));
        }
    }
    draft.note(
        "Samples, warm-up, device and number format are not recorded; the suite made 10 \
               runs of each.",
    );
    draft.finish("there is no group")
}

/// Returns the case that a name means, and its baseline: a case and its name in the file. For
/// example `fused_linear_gelu` has the baseline `baseline_linear_gelu`.
fn kernel_case(draft: &Draft<'_>, group: &str, name: &str) -> (Case, Option<(Case, String)>) {
    let of = |work: &str, variant: &str| {
        let configuration = configuration(variant);
        draft.case(Workload::new(format!("{group} {work}").trim_end(), []), configuration)
    };
    match name.split_once('_') {
        Some((way @ ("baseline" | "fused"), work)) => {
            let baseline =
                (way == "fused").then(|| (of(work, "baseline"), format!("baseline_{work}")));
            (of(work, way), baseline)
        }
        _ => (of("", name), None),
    }
}

/// `compilation/*.json`.
#[derive(Deserialize)]
struct Compilation {
    model: SuiteModel,
    backends: Map<String, Value>,
    overhead: Option<Overhead>,
}

#[derive(Deserialize)]
struct SuiteModel {
    name: String,
}

#[derive(Deserialize)]
struct Backend {
    benchmark: Benchmark,
}

#[derive(Deserialize)]
struct Benchmark {
    mean_time_ms: f64,
}

/// Milliseconds. The file does not name the back end.
#[derive(Deserialize)]
struct Overhead {
    compilation_time: Option<f64>,
    setup_time: Option<f64>,
    total_time: Option<f64>,
}

/// Back end -> mean.
pub(super) fn compilation(text: &str, path: &Path) -> Result<Results, ImportError> {
    const FORMAT: Format = Format::Compilation;
    let bad = |reason: serde_json::Error| malformed(path, FORMAT, reason);
    let Compilation { model, backends, overhead } = serde_json::from_str(text).map_err(bad)?;
    let mut draft = Draft::new(path, FORMAT, "compilation");
    let of = |draft: &Draft<'_>, name: &str| {
        draft.case(Workload::new(model.name.as_str(), []), configuration(name))
    };
    let baseline = backends.contains_key("eager").then(|| of(&draft, "eager"));
    for (name, backend) in entries::<Backend>(backends).map_err(bad)? {
        let reported = Reported::summary(TOOL, backend.benchmark.mean_time_ms * MS);
        draft.record(of(&draft, &name), baseline.as_ref(), outcome(reported));
    }
    draft.note(match overhead {
        None => "Set-up, compile and first-call overheads: not recorded.".to_owned(),
        Some(overhead) => format!(
            "Overheads, of which back end is not recorded: compile {}, set-up {}, together {}.",
            milliseconds(overhead.compilation_time),
            milliseconds(overhead.setup_time),
            milliseconds(overhead.total_time)
        ),
    });
    draft.note("Samples, their number and spread, device and number format are not recorded.");
    draft.finish("there is no back end")
}

fn milliseconds(time: Option<f64>) -> String {
    time.map_or_else(|| "not recorded".to_owned(), |ms| format!("{ms} ms"))
}

/// The entries of an object, in their order.
fn named<T: for<'d> Deserialize<'d>>(text: &str) -> serde_json::Result<Vec<(String, T)>> {
    entries(serde_json::from_str(text)?)
}

fn entries<T: for<'d> Deserialize<'d>>(
    object: Map<String, Value>,
) -> serde_json::Result<Vec<(String, T)>> {
    let entry = |(name, value)| {
        let named = |error| serde::de::Error::custom(format!("`{name}`: {error}"));
        serde_json::from_value(value).map_err(named).map(|value| (name, value))
    };
    object.into_iter().map(entry).collect()
}
