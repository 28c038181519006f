//! Operators by self time. Time that no operator accounts for is a row of its own, so that the
//! shares add up to the stated total.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Profile;
use crate::digits;
use crate::table::{Align, Table, terminal_table};

/// The table of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorTable {
    /// Calls that were profiled.
    pub calls: u32,
    /// Streams that steps ran on.
    pub streams: usize,
    /// The whole that shares refer to: the time of all calls on the host, once for each stream.
    pub total_ns: f64,
    /// Time that no operator accounts for: launches, gaps, waiting, and the profiler's own clocks.
    pub unattributed_ns: f64,
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
        // A device's own clock may run a little faster than the host's; then nothing is left over.
        let total_ns = (profile.wall_ns * streams as f64).max(attributed_ns);
        let finished = |(name, row): (&str, OperatorRow)| OperatorRow {
            name: name.to_owned(),
            share: if total_ns > 0.0 { row.time_ns / total_ns } else { 0.0 },
            mean_ns: row.time_ns / row.calls as f64,
            ..row
        };
        let mut operators: Vec<OperatorRow> = rows.into_iter().map(finished).collect();
        operators.sort_by(|a, b| b.time_ns.total_cmp(&a.time_ns));
        let unattributed_ns = total_ns - attributed_ns;
        Self { calls: profile.calls, streams, total_ns, unattributed_ns, operators }
    }
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
        for (name, ns) in [("(unattributed)", self.unattributed_ns), ("total", self.total_ns)] {
            let mut cells = vec![name.to_owned(), String::new(), digits::time(ns, None), share(ns)];
            cells.resize(titles.len(), String::new());
            table.push(cells);
        }
        f.write_str(&terminal_table(
            &table,
            f.width().and_then(|width| u16::try_from(width).ok()).unwrap_or(u16::MAX),
        ))
    }
}
