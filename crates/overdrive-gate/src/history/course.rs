//! A history for a terminal: a line a series, with its course in eight heights and its last change.

use super::series::{HistorySeries, LevelChange, Point};
use crate::history::entry::{LATENCY, REPORTED};
use overdrive_bench::date::utc;
use overdrive_bench::digits;
use overdrive_bench::quality::lost::lost_quantity;
use overdrive_bench::table::{Align, Table, cell, indented, terminal_table};

const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Points that a line has room for; the newest are shown.
const WIDTH: usize = 40;

/// Every series under its machine, then every change in words.
pub fn history_table(series: &[HistorySeries], width: u16) -> String {
    let mut text = String::new();
    let mut from = 0;
    while from < series.len() {
        let hardware = &series[from].hardware;
        let count = series[from..].iter().take_while(|one| one.hardware == *hardware).count();
        let of_machine = &series[from..from + count];
        text += &format!("{hardware}\n{}\n", terminal_table(&table(of_machine), width));
        for one in of_machine {
            for change in &one.changes {
                text += &told(&format!("{}: {}", one.case, sentence(one, change)), width);
            }
            text += &losses(one).map(|loss| told(&loss, width)).collect::<String>();
        }
        text.push('\n');
        from += count;
    }
    let changes: usize = series.iter().map(|one| one.changes.len()).sum();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    text + &format!("{changes} change{} in {} series\n", plural(changes), series.len())
}

fn table(series: &[HistorySeries]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Case", Left),
        ("Metric", Left),
        ("Runs", Right),
        ("First", Right),
        ("Last", Right),
        ("Course", Left),
        ("Last change", Left),
    ]);
    for one in series {
        let last = one.points.last().expect("a series has a point");
        table.push(vec![
            one.case.clone(),
            one.metric.clone(),
            one.points.len().to_string(),
            value(&one.metric, one.points[0].value),
            value(&one.metric, last.value),
            course(one),
            cell(one.changes.last().map(|change| sized(one, change))),
        ]);
    }
    table.without_unknown_columns()
}

/// Heights between the smallest and the largest value shown.
fn course(series: &HistorySeries) -> String {
    let points = &series.points[series.points.len().saturating_sub(WIDTH)..];
    let values = || points.iter().map(|point| point.value);
    let (low, high) =
        values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    // A course of less than one per cent is level: its wobble would look like the Alps.
    let range = (high - low).max(0.01 * high);
    let height = |value: f64| {
        let share = if range > 0.0 { (value - low) / range } else { 0.0 };
        HEIGHTS[((share * 8.0) as usize).min(7)]
    };
    values().map(height).collect()
}

/// `2026-12-02: 1.10x`
fn sized(series: &HistorySeries, change: &LevelChange) -> String {
    let day = utc(series.points[change.index].unix_s);
    format!("{}: {:.2}x", &day[..10], change.after / change.before)
}

/// Quality that fell from a run to the next, a line each.
fn losses(series: &HistorySeries) -> impl Iterator<Item = String> {
    let lost = move |pair: &[Point]| {
        let figures = [&pair[0], &pair[1]].map(|point| (point.value, point.interval));
        let loss = lost_quantity(&series.metric, figures)?;
        Some(format!("{}: {loss} ({} UTC)", series.case, utc(pair[1].unix_s)))
    };
    series.points.windows(2).filter_map(lost)
}

fn told(sentence: &str, width: u16) -> String {
    indented(sentence, width.into(), "  ").join("\n") + "\n"
}

fn sentence(series: &HistorySeries, change: &LevelChange) -> String {
    let point = &series.points[change.index];
    let commit = point
        .commit
        .as_deref()
        .map_or("an unknown commit", |commit| &commit[..commit.len().min(12)]);
    let [before, after] = [change.before, change.after].map(|level| value(&series.metric, level));
    let [old, new] = change.sessions;
    let interval = change
        .ratio_interval
        .map_or(String::new(), |[low, high]| format!(", 95 % [{low:.3}, {high:.3}]"));
    format!(
        "{} at or before {commit} ({} UTC), from {before} in {old} sessions to {after} in \
         {new}{interval}, p = {:.3}",
        sized(series, change),
        utc(point.unix_s),
        change.p
    )
}

fn value(metric: &str, value: f64) -> String {
    match metric {
        LATENCY | REPORTED => digits::time(value, None),
        name if name.ends_with("bytes") => digits::bytes(value as u64),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::history::series::tests::{entries, step};
    use crate::history::{history_table, series};

    #[test]
    fn an_accuracy_that_halved_is_said() {
        let of = |values: &[f64]| {
            let mut found = entries("study: work: cpu int8", values);
            found.iter_mut().for_each(|entry| entry.metric = "accuracy".to_owned());
            history_table(&series(&found), 160)
        };
        assert!(
            of(&[0.92, 0.46]).contains("cpu int8: accuracy halved: 0.920 to 0.460, no interval")
        );
        assert!(
            !of(&[0.46, 0.92, 0.91]).contains("no interval"),
            "gains and single samples are no loss"
        );
    }

    #[test]
    fn a_history_prints() {
        let mut all = entries("study: work: cpu compile", &step(1e6, 1.1e6));
        all.extend(entries("study: work: cpu eager", &step(2e6, 2e6)));
        insta::assert_snapshot!(history_table(&series(&all), 160));
    }
}
