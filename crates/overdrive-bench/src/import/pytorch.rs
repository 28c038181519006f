//! Export of PyTorch's profiler (`prof.export_chrome_trace`): complete events, in microseconds, of
//! operators on the host and of kernels and copies on the device.
//!
//! One record for each operator or kernel and shape of its inputs. Tracing slows the traced
//! operators, so none of these times is a latency. An operator's time includes the operators that
//! it calls, so its self time is recorded too.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::draft::{Draft, configuration, malformed, outcome};
use super::error::ImportError;
use super::format::Format;
use super::operators::{Event, Operator, operators};
use crate::case::Workload;
use crate::failure::Failure;
use crate::outcome::Outcome;
use crate::reported::{Kept, Reported};
use crate::results::Results;

const FORMAT: Format = Format::Pytorch;
const TOOL: &str = "the PyTorch profiler";

#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<RawEvent>,
    #[serde(rename = "deviceProperties", default)]
    devices: Vec<DeviceProperties>,
    #[serde(rename = "baseTimeNanoseconds")]
    base_time_ns: Option<u64>,
}

#[derive(Deserialize)]
struct DeviceProperties {
    id: u32,
    name: String,
}

#[derive(Deserialize)]
struct RawEvent {
    ph: Option<String>,
    name: Option<String>,
    cat: Option<String>,
    ts: Option<f64>,
    dur: Option<f64>,
    pid: Option<Value>,
    tid: Option<Value>,
    args: Option<EventArguments>,
}

#[derive(Deserialize)]
struct EventArguments {
    #[serde(rename = "Input Dims")]
    input_dims: Option<Value>,
    device: Option<Value>,
}

pub(super) fn parse(text: &str, path: &Path) -> Result<Results, ImportError> {
    let trace: Trace =
        serde_json::from_str(text).map_err(|reason| malformed(path, FORMAT, reason))?;
    let mut draft = Draft::new(path, FORMAT, "profile");
    draft.started(trace.base_time_ns.unwrap_or(0) / 1_000_000_000);
    for device in trace.devices {
        draft.device(format!("cuda:{}", device.id), device.name);
    }
    let mut ignored: BTreeMap<String, u64> = BTreeMap::new();
    let mut events = Vec::new();
    for raw in trace.events.into_iter().filter(|event| event.ph.as_deref() == Some("X")) {
        let category = raw.cat.clone().unwrap_or_default();
        match event(raw) {
            Some(event) => events.push(event),
            None => *ignored.entry(category).or_default() += 1,
        }
    }
    for (key, operator) in operators(events) {
        let workload = Workload::new(format!("{} {}", key.name, key.shapes).trim_end(), []);
        let configuration =
            crate::case::Configuration { device: key.device, ..configuration("pytorch") };
        let case = draft.case(workload, configuration);
        draft.record(case, None, judged(operator));
    }
    draft.note(
        "A traced run: times hold the tracer's own cost and are no latencies; outputs were not \
         compared with a reference.",
    );
    if !ignored.is_empty() {
        let counts: Vec<String> = ignored
            .iter()
            .take(8)
            .map(|(category, count)| format!("{count} of `{category}`"))
            .collect();
        draft.note(format!(
            "Events that are neither operators nor kernels were left out: {}.",
            counts.join(", ")
        ));
    }
    draft.finish("there is no operator, kernel or copy with a duration")
}

/// An operator, a kernel or a copy; categories as current and older versions of PyTorch write them.
fn event(raw: RawEvent) -> Option<Event> {
    let category = raw.cat?.to_ascii_lowercase();
    let on_device = match category.as_str() {
        "cpu_op" | "operator" => false,
        "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => true,
        _ => return None,
    };
    let track = format!("{} {}", raw.pid.unwrap_or_default(), raw.tid.unwrap_or_default());
    let arguments = raw.args.unwrap_or(EventArguments { input_dims: None, device: None });
    let device = match (on_device, arguments.device.as_ref().and_then(Value::as_u64)) {
        (false, _) => "cpu".to_owned(),
        (true, Some(id)) => format!("cuda:{id}"),
        (true, None) => "cuda".to_owned(),
    };
    let (start_us, duration_us) = (raw.ts?, raw.dur?);
    (duration_us >= 0.0).then(|| Event {
        name: raw.name.unwrap_or_default(),
        shapes: arguments.input_dims.map(|dims| dims.to_string()).unwrap_or_default(),
        device,
        track,
        start_us,
        duration_us,
    })
}

/// All events of an operator. If one is shorter than the tracer can tell, only their mean is known.
fn judged(operator: Operator) -> Outcome {
    let samples_ns: Vec<f64> = operator.durations_us.iter().map(|us| us * 1e3).collect();
    let count = samples_ns.len() as u64;
    let sum_ns: f64 = samples_ns.iter().sum();
    if sum_ns <= 0.0 {
        let why = format!("each of its {count} events is shorter than the tracer can tell");
        return Failure::failed(why).into();
    }
    let mut outcome = match Reported::samples(TOOL, Kept::Trace, samples_ns) {
        Ok(reported) => outcome(reported),
        Err(_) => outcome(Reported {
            kept: Kept::Trace,
            count: Some(count),
            ..Reported::summary(TOOL, sum_ns / count as f64)
        }),
    };
    if let Some(measurement) = outcome.measurement_mut() {
        measurement.quantities.insert("self_total_ns".to_owned(), operator.self_us * 1e3);
    }
    outcome
}
