//! `overdrive profile`: operators by self time, and a trace. Profiled calls never feed a latency.

use crate::cli::Profile;
use crate::devices;
use crate::failure::Failure;
use comfy_table::{Cell, CellAlignment, Table, presets};
use overdrive::bench::exit::Exit;
use overdrive::bench::report::write_atomically;
use overdrive::ir::backend::StepProfile;
use overdrive::ir::{Backend, Mode, State, Tuning};
use overdrive::models;
use overdrive::studies::Workload;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Instant;

/// One row: all steps of one name.
#[derive(Default)]
struct Row {
    calls: usize,
    time_ns: f64,
    flops: f64,
    bytes: f64,
    peak_bytes: u64,
}

pub(crate) fn profile(arguments: &Profile) -> Result<Exit, Failure> {
    let model = models::find(&arguments.model).map_err(Failure::bad_input)?;
    let sizes = arguments.batch.map(|n| ("batch".to_owned(), n as usize)).into_iter().collect();
    let workload = Workload::of_model(model, &sizes).map_err(Failure::bad_input)?;
    let backend = devices::cpu(&arguments.machine)?;
    let mode: Mode = arguments.mode.into();
    let graph = &workload.graph;
    let mut executable = backend.compile(graph, mode, &Tuning::default()).map_err(Failure::harness)?;
    let mut state = State::initial(graph, &backend).map_err(Failure::harness)?;
    let tensors = workload.inputs(arguments.machine.seed);
    let inputs =
        tensors.iter().map(|t| backend.upload(t)).collect::<Result<Vec<_>, _>>().map_err(Failure::harness)?;
    let types = graph.outputs().iter().map(|o| graph.ty(o.value));
    let mut outputs =
        types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>().map_err(Failure::harness)?;
    // Warm: packing and first touches are no part of a steady call.
    for _ in 0..3 {
        let pending = executable.run(&mut state, &inputs, &mut outputs).map_err(Failure::harness)?;
        pending.wait().map_err(Failure::harness)?;
    }
    let start = Instant::now();
    let steps =
        executable.profile(&mut state, &inputs, &mut outputs, arguments.calls).map_err(Failure::harness)?;
    let total_ns = start.elapsed().as_secs_f64() * 1e9;
    if let Some(file) = &arguments.trace {
        let trace = trace(&steps, model.name);
        write_atomically(file, trace.to_string().as_bytes()).map_err(Failure::bad_input)?;
    }
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    // What packs weights did so before these calls.
    for step in steps.iter().filter(|step| !step.time_ns.is_empty()) {
        let row = rows.entry(&step.name).or_default();
        let calls = step.time_ns.len();
        row.calls += calls;
        row.time_ns += step.time_ns.iter().sum::<f64>();
        row.flops += step.flops as f64 * calls as f64;
        row.bytes += step.bytes as f64 * calls as f64;
        row.peak_bytes = row.peak_bytes.max(step.result_bytes);
    }
    let mut rows: Vec<(&str, Row)> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.time_ns.total_cmp(&a.1.time_ns));
    let attributed: f64 = rows.iter().map(|(_, row)| row.time_ns).sum();
    let memory = executable.memory();
    if arguments.json {
        let list: Vec<_> = rows
            .iter()
            .map(|(name, row)| {
                json!({
                    "name": name,
                    "calls": row.calls,
                    "time_ns": row.time_ns,
                    "share": row.time_ns / total_ns,
                    "flops": row.flops,
                    "bytes": row.bytes,
                    "largest_result_bytes": row.peak_bytes,
                })
            })
            .collect();
        let json = json!({
            "model": model.name,
            "mode": mode.name(),
            "calls": arguments.calls,
            "total_ns": total_ns,
            "unattributed_ns": total_ns - attributed,
            "operators": list,
            "memory": memory,
        });
        println!("{}", serde_json::to_string_pretty(&json).expect("plain data"));
        return Ok(Exit::Fine);
    }
    println!("{}", table(&rows, total_ns, total_ns - attributed));
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    println!(
        "{} {} x {}: {:.3} ms a call; transient {:.1} MiB, prepared {:.1} MiB, parameters {:.1} MiB",
        model.name,
        mode,
        arguments.calls,
        total_ns / 1e6 / f64::from(arguments.calls),
        mib(memory.transient_bytes),
        mib(memory.persistent_bytes),
        mib(memory.state_bytes),
    );
    Ok(Exit::Fine)
}

fn table(rows: &[(&str, Row)], total_ns: f64, unattributed_ns: f64) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["operator", "calls", "self ms", "share", "mean us", "GFLOP/s", "GB/s", "result MiB"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for (name, row) in rows {
        table.add_row([
            Cell::new(name),
            right(row.calls.to_string()),
            right(format!("{:.3}", row.time_ns / 1e6)),
            right(format!("{:.1} %", 100.0 * row.time_ns / total_ns)),
            right(format!("{:.1}", row.time_ns / 1e3 / row.calls as f64)),
            right(format!("{:.1}", row.flops / row.time_ns)),
            right(format!("{:.1}", row.bytes / row.time_ns)),
            right(format!("{:.2}", row.peak_bytes as f64 / (1 << 20) as f64)),
        ]);
    }
    let mut last = vec![Cell::new("(between steps)"), right(String::new())];
    last.push(right(format!("{:.3}", unattributed_ns / 1e6)));
    last.push(right(format!("{:.1} %", 100.0 * unattributed_ns / total_ns)));
    table.add_row(last);
    table
}

/// Chrome's trace format: complete events in microseconds on one track.
fn trace(steps: &[StepProfile], model: &str) -> serde_json::Value {
    let mut run_start_us = 0.0;
    let mut events = Vec::new();
    let calls = steps.iter().map(|s| s.time_ns.len()).max().unwrap_or(0);
    for call in 0..calls {
        let mut end_us: f64 = run_start_us;
        for step in steps {
            // What packs weights runs only where they changed.
            let (Some(start_ns), Some(time_ns)) = (step.start_ns.get(call), step.time_ns.get(call)) else {
                continue;
            };
            let (ts, dur) = (run_start_us + start_ns / 1e3, time_ns / 1e3);
            end_us = end_us.max(ts + dur);
            events.push(json!({
                "name": step.name, "cat": step.scope, "ph": "X", "ts": ts, "dur": dur, "pid": 1, "tid": 1,
                "args": { "scope": step.scope, "flops": step.flops, "bytes": step.bytes },
            }));
        }
        events.push(json!({
            "name": format!("{model} call {call}"), "cat": "call", "ph": "X",
            "ts": run_start_us, "dur": end_us - run_start_us, "pid": 1, "tid": 0,
        }));
        run_start_us = end_us;
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}
