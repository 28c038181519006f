//! Operators by self time.
//!
//! Time in which no operator ran is a row of its own, and so is time in which several did. So the
//! shares add up to the stated total.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{Profile, ProfiledStep};
use crate::digits;
use crate::table::{Align, Table, terminal_table};

/// The table of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorTable {
    /// Calls that were profiled.
    pub calls: u32,
    /// Streams that steps ran on.
    pub streams: usize,
    /// The whole that shares refer to: the time of all calls on the host.
    pub total_ns: f64,
    /// Time in which no operator ran: launches, gaps, waiting, and the profiler's own clocks.
    pub unattributed_ns: f64,
    /// Time that operators count more than once, since others ran on other streams: the sum of
    /// their times less the time in which any ran.
    pub overlapped_ns: f64,
    /// By self time, the longest first.
    pub operators: Vec<OperatorRow>,
}

/// All steps of one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OperatorRow {
    /// The name of the steps: `linear+gelu`.
    pub name: String,
    /// How often they ran, over all profiled calls.
    pub calls: u64,
    /// Their time together. Steps do not contain each other, so it is self time.
    pub time_ns: f64,
    /// Share of [`OperatorTable::total_ns`].
    pub share: f64,
    /// Mean time of one.
    pub mean_ns: f64,
    /// FLOPs of all of them, by the graph's own count.
    pub flops: f64,
    /// Bytes that all of them read and wrote, by the plan.
    pub bytes: f64,
    /// The most bytes of the arena that lived while one of them ran.
    pub peak_bytes: u64,
}

impl OperatorTable {
    /// Sums the steps by name.
    pub fn of(profile: &Profile) -> Self {
        let mut rows: BTreeMap<&str, OperatorRow> = BTreeMap::new();
        // Steps that pack weights ran before these calls, and have no times.
        for step in profile.steps.iter().filter(|step| !step.profile.time_ns.is_empty()) {
            let row = rows.entry(&step.profile.name).or_default();
            let calls = step.profile.time_ns.len();
            row.calls += calls as u64;
            row.time_ns += step.profile.time_ns.iter().sum::<f64>();
            row.flops += step.profile.flops as f64 * calls as f64;
            row.bytes += step.profile.bytes as f64 * calls as f64;
            row.peak_bytes = row.peak_bytes.max(step.live_bytes);
        }
        let attributed_ns: f64 = rows.values().map(|row| row.time_ns).sum();
        let streams = profile.streams().len();
        let busy_ns = if streams > 1 { busy_ns(profile) } else { attributed_ns };
        // A device's own clock may run a little faster than the host's; then nothing is left over.
        let total_ns = profile.wall_ns.max(busy_ns);
        let finished = |(name, row): (&str, OperatorRow)| OperatorRow {
            name: name.to_owned(),
            share: if total_ns > 0.0 { row.time_ns / total_ns } else { 0.0 },
            mean_ns: row.time_ns / row.calls as f64,
            ..row
        };
        let mut operators: Vec<OperatorRow> = rows.into_iter().map(finished).collect();
        operators.sort_by(|a, b| b.time_ns.total_cmp(&a.time_ns));
        let (unattributed_ns, overlapped_ns) = (total_ns - busy_ns, attributed_ns - busy_ns);
        let calls = profile.calls;
        Self { calls, streams, total_ns, unattributed_ns, overlapped_ns, operators }
    }
}

/// The time of all calls in which any step ran.
fn busy_ns(profile: &Profile) -> f64 {
    let of_call = |call: usize| {
        let span = |step: &ProfiledStep| {
            let (times, starts) = (&step.profile.time_ns, &step.profile.start_ns);
            Some((*starts.get(call)?, *starts.get(call)? + *times.get(call)?))
        };
        let mut spans: Vec<(f64, f64)> = profile.steps.iter().filter_map(span).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy, mut until) = (0.0, f64::NEG_INFINITY);
        for (start, end) in spans {
            busy += (end - start.max(until)).max(0.0);
            until = until.max(end);
        }
        busy
    };
    (0..profile.calls as usize).map(of_call).sum()
}

/// For a terminal.
impl fmt::Display for OperatorTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles =
            ["operator", "calls", "self time", "share", "mean", "FLOP/s", "B/s", "peak memory"];
        let column = |title| (title, if title == titles[0] { Align::Left } else { Align::Right });
        let mut table = Table::new(&titles.map(column));
        let share = |ns: f64| format!("{:.1} %", 100.0 * ns / self.total_ns.max(f64::MIN_POSITIVE));
        for row in &self.operators {
            let per_second =
                |amount: f64, unit: &str| digits::rate(amount / row.time_ns * 1e9, None, unit);
            table.push(vec![
                row.name.clone(),
                row.calls.to_string(),
                digits::time(row.time_ns, None),
                share(row.time_ns),
                digits::time(row.mean_ns, None),
                per_second(row.flops, "FLOP"),
                per_second(row.bytes, "B"),
                digits::bytes(row.peak_bytes),
            ]);
        }
        let at_once = (self.streams > 1).then_some(("(at once)", "-", self.overlapped_ns));
        let rest = [("(unattributed)", "", self.unattributed_ns), ("total", "", self.total_ns)];
        for (name, sign, ns) in at_once.into_iter().chain(rest) {
            let [time, share] = [digits::time(ns, None), share(ns)].map(|n| format!("{sign}{n}"));
            let mut cells = vec![name.to_owned(), String::new(), time, share];
            cells.resize(titles.len(), String::new());
            table.push(cells);
        }
        f.write_str(&terminal_table(
            &table,
            f.width().and_then(|width| u16::try_from(width).ok()).unwrap_or(u16::MAX),
        ))
    }
}
