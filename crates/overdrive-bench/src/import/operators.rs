//! Events of a trace summed by operator, with self times: the time of an event less the time of the
//! events inside of it.

use std::collections::BTreeMap;

/// A complete event.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) name: String,
    /// Shapes of the inputs, as text; empty where they were not recorded.
    pub(super) shapes: String,
    pub(super) device: String,
    /// Process and thread, or stream: events of one track nest.
    pub(super) track: String,
    pub(super) start_us: f64,
    pub(super) duration_us: f64,
}

/// The key that events are summed by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) device: String,
    pub(super) name: String,
    pub(super) shapes: String,
}

/// All events of one key.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Operator {
    /// In the order of their starts, track by track.
    pub(super) durations_us: Vec<f64>,
    pub(super) self_us: f64,
}

/// Sums events by key.
pub(super) fn operators(events: Vec<Event>) -> BTreeMap<Key, Operator> {
    let mut tracks: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in events {
        tracks.entry(event.track.clone()).or_default().push(event);
    }
    let mut operators: BTreeMap<Key, Operator> = BTreeMap::new();
    for mut events in tracks.into_values() {
        // If two start together, the longer one is outside.
        events.sort_by(|a, b| {
            a.start_us.total_cmp(&b.start_us).then(b.duration_us.total_cmp(&a.duration_us))
        });
        let selves = self_times(&events);
        for (event, self_us) in events.into_iter().zip(selves) {
            let key = Key { device: event.device, name: event.name, shapes: event.shapes };
            let operator = operators.entry(key).or_default();
            operator.durations_us.push(event.duration_us);
            operator.self_us += self_us;
        }
    }
    operators
}

/// Durations less those of the events directly inside; `events` by start, outer before inner.
fn self_times(events: &[Event]) -> Vec<f64> {
    let mut selves: Vec<f64> = events.iter().map(|event| event.duration_us).collect();
    let mut open: Vec<usize> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let ended =
            |&outer: &usize| events[outer].start_us + events[outer].duration_us <= event.start_us;
        while open.last().is_some_and(ended) {
            open.pop();
        }
        if let Some(&outer) = open.last() {
            // An event that outlasts its outer one belongs to it only as far as they overlap.
            let end_us = events[outer].start_us + events[outer].duration_us;
            selves[outer] -= event.duration_us.min(end_us - event.start_us);
        }
        open.push(at);
    }
    selves.into_iter().map(|us| us.max(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, track: &str, start_us: f64, duration_us: f64) -> Event {
        let text = |s: &str| s.to_owned();
        let (name, track) = (text(name), text(track));
        Event { name, track, shapes: String::new(), device: text("cpu"), start_us, duration_us }
    }

    fn selves(events: Vec<Event>) -> BTreeMap<String, (usize, f64)> {
        let found = operators(events);
        found.into_iter().map(|(key, o)| (key.name, (o.durations_us.len(), o.self_us))).collect()
    }

    #[test]
    fn what_is_inside_is_taken_off_once() {
        let found = selves(vec![
            event("addmm", "1", 12.0, 5.0),
            event("linear", "1", 10.0, 10.0),
            event("copy", "1", 13.0, 2.0),
            event("linear", "1", 20.0, 4.0),
            event("linear", "2", 11.0, 1.0),
        ]);
        assert_eq!(found["linear"], (3, 5.0 + 4.0 + 1.0));
        assert_eq!(found["addmm"], (1, 3.0));
        assert_eq!(found["copy"], (1, 2.0));
    }

    #[test]
    fn events_that_overlap_without_nesting_do_not_give_negative_times() {
        let found = selves(vec![
            event("a", "1", 0.0, 4.0),
            event("b", "1", 3.0, 10.0),
            event("c", "1", 3.0, 10.0),
        ]);
        assert!(found.values().all(|(_, us)| *us >= 0.0), "{found:?}");
        assert_eq!(found["a"], (1, 3.0));
    }
}
