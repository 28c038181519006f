//! A profile in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and
//! `chrome://tracing` open. It has a track for the calls, one for each stream, and a counter of the
//! arena's live bytes.
//!
//! Source: "Trace Event Format", Chromium project. Times are in microseconds. Events of one track
//! never overlap without nesting, which Perfetto would not draw.

use serde_json::{Value, json};

use super::Profile;

/// The only process of a trace.
const PROCESS: u64 = 1;
/// The track of whole calls; that of stream `s` is `s + 1`.
const CALLS: u64 = 0;

/// The trace of a profile. Calls stand end to end: what passed between them is not recorded.
pub fn chrome_trace(profile: &Profile) -> Value {
    let mut events = names(profile);
    let mut start_us = 0.0;
    for call in 0..profile.calls as usize {
        events.push(json!({
            "name": format!("sample {call}"), "cat": "sample", "ph": "i", "s": "p",
            "ts": start_us, "pid": PROCESS, "tid": CALLS,
        }));
        let mut end_us: f64 = start_us;
        for step in &profile.steps {
            let timed = &step.profile;
            // Steps that pack weights run only after the weights have changed.
            let (Some(at_ns), Some(time_ns)) = (timed.start_ns.get(call), timed.time_ns.get(call))
            else {
                continue;
            };
            let (ts, dur) = (start_us + at_ns / 1e3, time_ns / 1e3);
            end_us = end_us.max(ts + dur);
            events.push(json!({
                "name": timed.name, "cat": "step", "ph": "X", "ts": ts, "dur": dur,
                "pid": PROCESS, "tid": u64::from(step.stream) + 1,
                "args": {
                    "scope": timed.scope, "flops": timed.flops, "bytes": timed.bytes,
                    "result_bytes": timed.result_bytes, "live_bytes": step.live_bytes,
                },
            }));
            events.push(memory(ts, step.live_bytes));
        }
        events.push(memory(end_us, profile.end_live_bytes));
        events.push(json!({
            "name": format!("{} call {call}", profile.name), "cat": "call", "ph": "X",
            "ts": start_us, "dur": end_us - start_us, "pid": PROCESS, "tid": CALLS,
        }));
        start_us = end_us;
    }
    json!({
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "source": "overdrive profile",
            "warning": "A traced run: no time in it is a latency. Calls stand end to end.",
        },
    })
}

/// Names of the process and its tracks, and their order.
fn names(profile: &Profile) -> Vec<Value> {
    let named = |kind: &str, tid: u64, name: String| {
        let args = json!({ "name": name });
        json!({ "name": kind, "ph": "M", "ts": 0, "pid": PROCESS, "tid": tid, "args": args })
    };
    let mut tracks = vec![(CALLS, "calls".to_owned())];
    tracks.extend(
        profile
            .streams()
            .into_iter()
            .map(|stream| (u64::from(stream) + 1, format!("stream {stream}"))),
    );
    let mut events =
        vec![named("process_name", CALLS, format!("{} {}", profile.name, profile.mode))];
    for (tid, name) in tracks {
        events.push(named("thread_name", tid, name));
        events.push(json!({
            "name": "thread_sort_index", "ph": "M", "ts": 0, "pid": PROCESS, "tid": tid,
            "args": { "sort_index": tid },
        }));
    }
    events
}

/// A point of the memory counter, which belongs to the process.
fn memory(ts: f64, live_bytes: u64) -> Value {
    json!({
        "name": "arena", "ph": "C", "ts": ts, "pid": PROCESS, "tid": CALLS,
        "args": { "live bytes": live_bytes },
    })
}
