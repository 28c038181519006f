//! The hardware matrix: results of several machines in one table, cell by cell, without a ratio
//! between any two.

use std::collections::BTreeMap;

use super::judged::{JudgedResults, JudgedRow};
use super::section;
use overdrive_bench::quality::metrics;
use overdrive_bench::table::{Align, Column, Table, cell};

/// The cases that at least two of the files hold, in the order of the first, each with its row in
/// every file.
pub(super) fn shared<'j, 'r>(
    files: &[&'j JudgedResults<'r>],
) -> Vec<Vec<Option<&'j JudgedRow<'r>>>> {
    let mut seen = BTreeMap::new();
    for row in files.iter().flat_map(|judged| &judged.rows) {
        *seen.entry(row.id.as_str()).or_insert(0) += 1;
    }
    let mut order: Vec<&str> = Vec::new();
    for row in files.iter().flat_map(|judged| &judged.rows) {
        if seen.remove(row.id.as_str()).is_some_and(|count| count > 1) {
            order.push(&row.id);
        }
    }
    order.into_iter().map(|id| files.iter().map(|judged| judged.find(id)).collect()).collect()
}

/// Case by machine; `None` where no case is shared.
pub(super) fn table(files: &[&JudgedResults<'_>], machines: &[String]) -> Option<Table> {
    let shared = shared(files);
    if shared.is_empty() {
        return None;
    }
    let left = ["Workload", "Configuration"]
        .map(|title| Column { title: title.into(), align: Align::Left });
    let right =
        machines.iter().map(|title| Column { title: title.clone().into(), align: Align::Right });
    let mut table = Table { columns: left.into_iter().chain(right).collect(), rows: Vec::new() };
    for cells in shared {
        let first = cells.iter().flatten().next().expect("a shared case has records");
        let mut row = vec![first.record.case.workload.to_string(), first.label.clone()];
        row.extend(cells.iter().map(|row| cell(row.map(figure))));
        table.push(row);
    }
    Some(table)
}

fn figure(row: &JudgedRow<'_>) -> String {
    match (row.record.outcome.failure(), row.measurement()) {
        (Some(failure), _) => failure.to_string(),
        (None, Some(measurement)) => {
            let n = section::count(measurement).map_or(String::new(), |n| format!(" n {n}"));
            let quality =
                || metrics().find_map(|metric| Some(metric.figure(&metric.read(measurement)?)));
            measurement
                .printed_time()
                .map(|time| time + &n)
                .or_else(quality)
                .unwrap_or("not timed".to_owned())
        }
        (None, None) => "not timed".to_owned(),
    }
}
