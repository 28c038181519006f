//! A chart of where the bytes of a file go: the baseline's file, then each part of the smaller one,
//! then their sum. The chart is drawn only where the sum is the file on the disk.

use super::bars::{Bar, BarChart, BarRow, Piece};
use super::chart::{Chart, MOST_ROWS, Study, anchors};
use super::figures::names;
use crate::judged::JudgedRow;
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;

/// Quantity: size of the model's file. Its parts are `file_bytes.PART`, and their sum is the file.
pub(super) const FILE_BYTES: &str = "file_bytes";

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    study.workloads().filter_map(|group| chart(study, group)).collect()
}

fn chart(study: &Study<'_>, group: &[&JudgedRow<'_>]) -> Option<Chart> {
    let mut rows = Vec::new();
    let mut off = Vec::new();
    let mut drawn = Vec::new();
    for (row, name) in group.iter().zip(names(group)) {
        let Some(measurement) = row.measurement() else { continue };
        let parts = parts(measurement);
        let Some(&total) = measurement.quantities.get(FILE_BYTES).filter(|_| !parts.is_empty())
        else {
            continue;
        };
        let sum: f64 = parts.iter().map(|(_, bytes)| bytes).sum();
        if sum != total {
            off.push(format!(
                " {name} is not drawn: its parts hold {sum} bytes, its file {total}."
            ));
            continue;
        }
        if rows.len() + parts.len() + 2 > MOST_ROWS {
            break;
        }
        drawn.push(*row);
        rows.push(BarRow::Heading(name));
        let baseline = row.baseline.and_then(|baseline| baseline.outcome.measurement());
        if let Some(bytes) = baseline.and_then(|m| m.quantities.get(FILE_BYTES)) {
            rows.push(BarRow::Bar(step("baseline's file", 0.0, *bytes, "$c0")));
        }
        let mut below = 0.0;
        for (part, bytes) in &parts {
            rows.push(BarRow::Bar(step(part, below, *bytes, "$c5")));
            below += bytes;
        }
        rows.push(BarRow::Bar(step("file", 0.0, total, "$c1")));
    }
    if drawn.is_empty() && off.is_empty() {
        return None;
    }
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: where the bytes go");
    let summary = format!("{title}, {} files", drawn.len());
    let rows = BarChart {
        rows,
        axis: "bytes on disk, each file on the scale of its baseline from 0 · smaller is better"
            .into(),
        legend: vec![],
    };
    Some(Chart {
        id: study.id(&format!("{workload}-waterfall")),
        caption: format!(
            "Each part begins where the one before ends; together they are the file, byte for \
             byte (exact, so without intervals).{}",
            off.concat()
        ),
        height: rows.height(),
        option: rows.option(),
        switch: None,
        summary,
        records: anchors(drawn),
        title,
    })
}

/// The parts by name, largest first.
fn parts(measurement: &Measurement) -> Vec<(&str, f64)> {
    let part = |(name, bytes): (&'_ String, &f64)| -> Option<(usize, f64)> {
        name.strip_prefix(FILE_BYTES)?.strip_prefix('.').map(|part| (part.len(), *bytes))
    };
    let mut parts: Vec<(&str, f64)> = measurement
        .quantities
        .iter()
        .filter_map(|(name, bytes)| {
            part((name, bytes)).map(|(length, bytes)| (&name[name.len() - length..], bytes))
        })
        .collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    parts
}

/// A piece that begins where the one before ended. The part below it is not painted.
fn step(name: &str, below: f64, bytes: f64, ink: &'static str) -> Bar {
    let size = digits::bytes(bytes as u64);
    Bar {
        name: name.to_owned(),
        pieces: vec![Piece { length: below, ink: "transparent" }, Piece { length: bytes, ink }],
        interval: None,
        figure: format!("{size}  ({bytes} B)"),
        short: size,
        tip: format!("{name}\n{bytes} bytes"),
    }
}
