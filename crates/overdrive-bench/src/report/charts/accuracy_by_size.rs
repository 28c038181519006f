//! Quality against bytes on disk, with the Pareto frontier: who is smaller and better than nobody else is grey.

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::{names, tip};
use super::plane::{Axis, Line, Plane, Point, Scale, Stroke};
use super::quality::{ACCURACIES, Better, LOSSES, Metric, Reading};
use super::size_waterfall::FILE_BYTES;
use crate::report::judged::Compared;

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let metrics = || ACCURACIES.iter().chain(&LOSSES);
    study.workloads().flat_map(|group| metrics().filter_map(|metric| chart(study, group, metric))).collect()
}

fn chart(study: &Study<'_>, group: &[&Compared<'_>], metric: &Metric) -> Option<Chart> {
    let known: Vec<(&Compared<'_>, f64, Reading)> = group
        .iter()
        .filter_map(|row| {
            let measurement = row.measurement()?;
            Some((*row, *measurement.quantities.get(FILE_BYTES)?, metric.read(measurement)?))
        })
        .collect();
    if known.len() < 2 {
        return None;
    }
    let rows: Vec<&Compared<'_>> = known.iter().map(|(row, ..)| *row).collect();
    let sizes: Vec<(f64, f64)> = known.iter().map(|(_, bytes, reading)| (*bytes, reading.value)).collect();
    let (mut frontier, mut dominated) = (Vec::new(), Vec::new());
    for ((index, (row, bytes, reading)), name) in known.iter().enumerate().zip(names(&rows)) {
        let point = Point {
            x: *bytes,
            y: reading.value,
            interval: reading.interval,
            label: Some(name),
            tip: format!("{}\n{}\n{}", tip(row), metric.figure(reading), crate::digits::bytes(*bytes as u64)),
        };
        if is_dominated(index, &sizes, metric.better) { dominated.push(point) } else { frontier.push(point) }
    }
    frontier.sort_by(|a, b| a.x.total_cmp(&b.x));
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: {} against size", metric.title);
    let plane = Plane {
        x: Axis { title: "bytes on disk · smaller is better".into(), scale: Scale::Log, format: "bytes" },
        y: Axis { title: metric.axis(), scale: Scale::Linear, format: metric.format },
        lines: vec![
            Line { name: "Pareto frontier".into(), ink: "$c1", stroke: Stroke::Steps, points: frontier },
            Line { name: "dominated".into(), ink: "$faint", stroke: Stroke::Points, points: dominated },
        ],
        level: None,
    };
    Some(Chart {
        id: study.id(&format!("{workload}-{}-by-size", metric.quantity)),
        caption: "On the frontier nothing else is both smaller and better; what it dominates is grey.".into(),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::X),
        summary: format!("{title}, {} cases", rows.len()),
        records: anchors(rows),
        title,
    })
}

/// Whether another is at least as small and as good, and one of the two more.
fn is_dominated(index: usize, sizes: &[(f64, f64)], better: Better) -> bool {
    let (bytes, quality) = sizes[index];
    let gain = |other: f64| if better == Better::Higher { other - quality } else { quality - other };
    sizes
        .iter()
        .any(|&(other, value)| other <= bytes && gain(value) >= 0.0 && (other < bytes || gain(value) > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_is_what_nobody_beats_in_both() {
        let sizes = [(100.0, 98.0), (25.0, 97.5), (30.0, 97.0), (12.0, 90.0), (100.0, 98.0)];
        let dominated = |better| (0..5).map(|i| is_dominated(i, &sizes, better)).collect::<Vec<_>>();
        assert_eq!(dominated(Better::Higher), [false, false, true, false, false]);
        assert_eq!(dominated(Better::Lower), [true, true, true, false, true]);
    }
}
