//! `nvbench --json`: a state for each point of a benchmark's axes, with summaries known by their
//! tags. Values are text there. Samples are kept in separate binary files, which are not read.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::draft::{Draft, configuration, malformed, outcome};
use super::error::ImportError;
use super::format::Format;
use crate::case::{Configuration, Workload};
use crate::failure::Failure;
use crate::outcome::Outcome;
use crate::reported::Reported;
use crate::results::Results;

const FORMAT: Format = Format::Nvbench;
const TOOL: &str = "nvbench";
/// Major version of the files that are known.
const KNOWN_MAJOR: u64 = 1;

#[derive(Deserialize)]
struct File {
    meta: Option<Meta>,
    devices: Option<Vec<NvbenchDevice>>,
    benchmarks: Vec<Benchmark>,
}

#[derive(Deserialize)]
struct Meta {
    version: Option<Versions>,
}

#[derive(Deserialize)]
struct Versions {
    json: Option<Version>,
}

#[derive(Deserialize)]
struct Version {
    major: u64,
}

#[derive(Deserialize)]
struct NvbenchDevice {
    id: u32,
    name: String,
}

#[derive(Deserialize)]
struct Benchmark {
    name: String,
    states: Option<Vec<NvbenchState>>,
}

#[derive(Deserialize)]
struct NvbenchState {
    device: Option<u32>,
    axis_values: Option<Vec<Named>>,
    summaries: Option<Vec<Summary>>,
    #[serde(default)]
    is_skipped: bool,
    skip_reason: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(rename = "type", default)]
    kind: String,
    value: String,
}

#[derive(Deserialize)]
struct Summary {
    tag: String,
    data: Option<Vec<Named>>,
}

/// Summaries that are kept beside the time, with the names that they get here.
const QUANTITIES: [(&str, &str); 3] = [
    ("nv/cold/sm_clock_rate/mean", "sm_clock_hz"),
    ("nv/cold/bw/global/utilization", "bandwidth_utilization"),
    ("nv/cold/bw/global/bytes_per_second", "bytes_per_second"),
];

pub(super) fn parse(text: &str, path: &Path) -> Result<Results, ImportError> {
    let file: File =
        serde_json::from_str(text).map_err(|reason| malformed(path, FORMAT, reason))?;
    let version = file.meta.and_then(|meta| meta.version?.json).map(|version| version.major);
    if let Some(found) = version.filter(|&major| major != KNOWN_MAJOR) {
        return Err(malformed(
            path,
            FORMAT,
            format!("file version {found}, expected {KNOWN_MAJOR}"),
        ));
    }
    let mut draft = Draft::new(path, FORMAT, TOOL);
    for device in file.devices.into_iter().flatten() {
        draft.device(format!("cuda:{}", device.id), device.name);
    }
    for benchmark in file.benchmarks {
        for state in benchmark.states.into_iter().flatten() {
            let (workload, configuration) = key(&benchmark.name, &state);
            let case = draft.case(workload, configuration);
            draft.record(case, None, judged(&state));
        }
    }
    draft.note(
        "Outputs were not compared with a reference; samples, driver and revision are not \
         recorded in the file.",
    );
    draft.finish("no benchmark has a state")
}

/// Whole numbers are sizes of the workload; types, words and fractions set a configuration apart.
fn key(name: &str, state: &NvbenchState) -> (Workload, Configuration) {
    let mut dimensions = BTreeMap::new();
    let mut others = Vec::new();
    for axis in state.axis_values.iter().flatten() {
        match axis.value.parse::<u64>() {
            Ok(size) if axis.kind == "int64" => drop(dimensions.insert(axis.name.clone(), size)),
            _ => others.push(format!("{}={}", axis.name, axis.value)),
        }
    }
    let mut configuration = configuration(TOOL);
    if let Some(device) = state.device {
        configuration.device = format!("cuda:{device}");
    }
    configuration.variant = (!others.is_empty()).then(|| others.join(" "));
    (Workload { name: name.to_owned(), dimensions }, configuration)
}

fn judged(state: &NvbenchState) -> Outcome {
    if state.is_skipped {
        return Failure::skipped(
            state.skip_reason.as_deref().unwrap_or("nvbench does not say why"),
        )
        .into();
    }
    let value = |tag: &str| -> Option<f64> {
        let summary = state.summaries.iter().flatten().find(|summary| summary.tag == tag)?;
        let value = summary.data.iter().flatten().find(|value| value.name == "value")?;
        value.value.parse().ok().filter(|value: &f64| value.is_finite())
    };
    let clocks = ["nv/cold/time/gpu", "nv/cold/time/cpu", "nv/cpu_only/time/cpu"];
    let Some((clock, mean_s)) =
        clocks.iter().find_map(|clock| Some((clock, value(&format!("{clock}/mean"))?)))
    else {
        return Failure::failed("nvbench gives no mean time of it").into();
    };
    let nanoseconds = |name: &str| value(&format!("{clock}/{name}")).map(|seconds| seconds * 1e9);
    let mean_ns = mean_s * 1e9;
    let deviation = value(&format!("{clock}/stdev/relative")).map(|relative| relative * mean_ns);
    let reported = Reported {
        count: value("nv/cold/sample_size").filter(|&count| count >= 1.0).map(|count| count as u64),
        standard_deviation_ns: deviation.or_else(|| nanoseconds("stdev/absolute")),
        min_ns: nanoseconds("min"),
        max_ns: nanoseconds("max"),
        ..Reported::summary(TOOL, mean_ns)
    };
    let mut outcome = outcome(reported);
    if let Some(measurement) = outcome.measurement_mut() {
        let known =
            QUANTITIES.iter().filter_map(|(tag, name)| Some(((*name).to_owned(), value(tag)?)));
        measurement.quantities.extend(known);
        let host = value("nv/cold/time/cpu/mean").filter(|_| *clock == "nv/cold/time/gpu");
        measurement
            .quantities
            .extend(host.map(|seconds| ("host_mean_ns".to_owned(), seconds * 1e9)));
    }
    outcome
}
