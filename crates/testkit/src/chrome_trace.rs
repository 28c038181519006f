//! Whether a text is a trace that Perfetto draws as it was meant: Chrome's "Trace Event Format",
//! less what Perfetto does not show right (events of one track that overlap without nesting).

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A track: process and thread.
type Track = (u64, u64);

/// Rounding of times that were converted to microseconds, in microseconds.
const SLACK_US: f64 = 1e-3;

/// The fault of a trace, if it has one.
///
/// # Errors
/// The first fault, with the event.
pub fn check(trace: &Value) -> Result<(), String> {
    let events = trace["traceEvents"].as_array().ok_or("there is no list `traceEvents`")?;
    let mut spans: BTreeMap<Track, Vec<(f64, f64)>> = BTreeMap::new();
    let mut open: BTreeMap<Track, Vec<&Value>> = BTreeMap::new();
    let (mut used, mut named) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let wrong = |what: &str| format!("{what}: {event}");
        let whole =
            |field: &str| event[field].as_u64().ok_or_else(|| wrong(&format!("no `{field}`")));
        let number = |field: &str| event[field].as_f64().filter(|x| x.is_finite() && *x >= 0.0);
        let track = (whole("pid")?, whole("tid")?);
        let start = number("ts").ok_or_else(|| wrong("no `ts`"))?;
        event["name"].as_str().ok_or_else(|| wrong("no `name`"))?;
        match event["ph"].as_str().ok_or_else(|| wrong("no `ph`"))? {
            "X" => {
                let duration = number("dur").ok_or_else(|| wrong("no duration"))?;
                spans.entry(track).or_default().push((start, start + duration));
                used.insert(track);
            }
            "B" => open.entry(track).or_default().push(event),
            "E" => {
                let begun = open.entry(track).or_default().pop();
                begun.ok_or_else(|| wrong("nothing is open"))?;
            }
            "C" => {
                let values = event["args"].as_object().filter(|values| !values.is_empty());
                if !values.is_some_and(|values| values.values().all(Value::is_number)) {
                    return Err(wrong("a counter without numbers"));
                }
            }
            "M" => match (event["name"].as_str(), &event["args"]) {
                (Some("thread_name"), arguments) if arguments["name"].is_string() => {
                    named.insert(track);
                }
                (Some("process_name"), arguments) if arguments["name"].is_string() => {}
                (Some("thread_sort_index"), arguments) if arguments["sort_index"].is_i64() => {}
                _ => return Err(wrong("metadata of no known form")),
            },
            "i" if matches!(event["s"].as_str(), Some("g" | "p" | "t")) => {
                used.insert(track);
            }
            _ => return Err(wrong("an event of an unknown kind")),
        }
    }
    if let Some(event) = open.values().flatten().next() {
        return Err(format!("not closed: {event}"));
    }
    if let Some(track) = used.difference(&named).next() {
        return Err(format!("the track {track:?} has no name"));
    }
    spans.into_iter().try_for_each(|(track, spans)| nest(track, spans))
}

/// Two spans of a track are apart, or one holds the other.
fn nest(track: Track, mut spans: Vec<(f64, f64)>) -> Result<(), String> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut outer: Vec<f64> = Vec::new();
    for (start, end) in spans {
        while outer.last().is_some_and(|&ends| ends <= start + SLACK_US) {
            outer.pop();
        }
        if outer.last().is_some_and(|&ends| end > ends + SLACK_US) {
            return Err(format!(
                "on the track {track:?} events overlap without nesting, from {start} us"
            ));
        }
        outer.push(end);
    }
    Ok(())
}
