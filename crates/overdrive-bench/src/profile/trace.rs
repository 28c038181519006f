//! A profile in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and
//! `chrome://tracing` open. Each rank is a process. It has a track for the calls, one for each
//! stream, and a counter of the arena's live bytes.
//!
//! Source: "Trace Event Format", Chromium project. Times are in microseconds. Events of one track
//! never overlap without nesting, which Perfetto would not draw.

use serde_json::{Value, json};

use super::Profile;

/// The track of whole calls; that of stream `s` is `s + 1`.
const CALLS: u64 = 0;

/// The trace of the same calls of each rank, one profile for each; of one without ranks. Calls
/// stand end to end: what passed between them is not recorded. A call begins on all ranks at once.
pub fn chrome_trace(ranks: &[Profile]) -> Value {
    let several = ranks.len() > 1;
    let named = |(rank, profile)| names(profile, rank, several);
    let mut events: Vec<Value> = ranks.iter().enumerate().flat_map(named).collect();
    let mut start_us = 0.0;
    let calls = ranks.iter().map(|profile| profile.calls).min().unwrap_or(0);
    for call in 0..calls as usize {
        let all = ranks.iter().enumerate();
        let ends =
            all.map(|(rank, profile)| events_of_call(&mut events, (rank, profile), call, start_us));
        start_us = ends.fold(start_us, f64::max);
    }
    json!({
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "source": "overdrive profile",
            "warning": "A traced run: no time in it is a latency. Calls stand end to end, and \
                        begin on all ranks at once.",
        },
    })
}

/// The number of a rank's process.
fn process(rank: usize) -> u64 {
    rank as u64 + 1
}

/// The events of a call of a rank, and its end.
fn events_of_call(
    events: &mut Vec<Value>,
    (rank, profile): (usize, &Profile),
    call: usize,
    start_us: f64,
) -> f64 {
    let process = process(rank);
    events.push(json!({
        "name": format!("sample {call}"), "cat": "sample", "ph": "i", "s": "p",
        "ts": start_us, "pid": process, "tid": CALLS,
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
            "pid": process, "tid": u64::from(step.stream) + 1,
            "args": {
                "scope": timed.scope, "flops": timed.flops, "bytes": timed.bytes,
                "result_bytes": timed.result_bytes, "live_bytes": step.live_bytes,
            },
        }));
        events.push(memory(process, ts, step.live_bytes));
    }
    events.push(memory(process, end_us, profile.end_live_bytes));
    events.push(json!({
        "name": format!("{} call {call}", profile.name), "cat": "call", "ph": "X",
        "ts": start_us, "dur": end_us - start_us, "pid": process, "tid": CALLS,
    }));
    end_us
}

/// Names of a rank's process and its tracks, and their order.
fn names(profile: &Profile, rank: usize, several: bool) -> Vec<Value> {
    let process = process(rank);
    let named = |kind: &str, tid: u64, name: String| {
        let args = json!({ "name": name });
        json!({ "name": kind, "ph": "M", "ts": 0, "pid": process, "tid": tid, "args": args })
    };
    let mut tracks = vec![(CALLS, "calls".to_owned())];
    tracks.extend(
        profile
            .streams()
            .into_iter()
            .map(|stream| (u64::from(stream) + 1, format!("stream {stream}"))),
    );
    let of_rank = if several { format!("rank {rank}: ") } else { String::new() };
    let title = format!("{of_rank}{} {}", profile.name, profile.mode);
    let mut events = vec![named("process_name", CALLS, title)];
    for (tid, name) in tracks {
        events.push(named("thread_name", tid, name));
        events.push(json!({
            "name": "thread_sort_index", "ph": "M", "ts": 0, "pid": process, "tid": tid,
            "args": { "sort_index": tid },
        }));
    }
    events
}

/// A point of the memory counter, which belongs to the process.
fn memory(process: u64, ts: f64, live_bytes: u64) -> Value {
    json!({
        "name": "arena", "ph": "C", "ts": ts, "pid": process, "tid": CALLS,
        "args": { "live bytes": live_bytes },
    })
}
