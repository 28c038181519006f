//! Quality against what it costs, bytes on disk or time per call, with the Pareto frontier: who is
//! cheaper and better than nobody else is grey.

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::{names, tip};
use super::plane::{Axis, Line, Plane, Point, Scale, Stroke};
use super::quality::{ACCURACIES, Better, LOSSES, Metric, Reading};
use super::size_waterfall::FILE_BYTES;
use crate::digits;
use crate::report::judged::{Compared, Judged};
use crate::report::leaders::believed;

/// What is paid for quality.
struct Cost {
    /// In the title: `size`.
    name: &'static str,
    axis: &'static str,
    /// How `charts.js` writes it.
    format: &'static str,
    of: fn(&Judged<'_>, &Compared<'_>) -> Option<f64>,
    text: fn(f64) -> String,
}

const COSTS: [Cost; 2] = [
    Cost {
        name: "size",
        axis: "bytes on disk · smaller is better",
        format: "bytes",
        of: |_, row| row.measurement()?.quantities.get(FILE_BYTES).copied(),
        text: |bytes| digits::bytes(bytes as u64),
    },
    Cost {
        name: "time",
        axis: "time per call · lower is better",
        format: "time",
        of: |judged, row| believed(judged, row).map(|(_, series)| series.summary.median_ns),
        text: |ns| digits::time(ns, None),
    },
];

pub(super) fn charts(judged: &Judged<'_>, study: &Study<'_>) -> Vec<Chart> {
    let metrics = || ACCURACIES.iter().chain(&LOSSES);
    let of_group = |group| {
        let pairs = COSTS.iter().flat_map(|cost| metrics().map(move |metric| (cost, metric)));
        pairs.filter_map(move |(cost, metric)| chart(judged, study, (group, cost, metric)))
    };
    study.workloads().flat_map(of_group).collect()
}

fn chart(
    judged: &Judged<'_>,
    study: &Study<'_>,
    (group, cost, metric): (&[&Compared<'_>], &Cost, &Metric),
) -> Option<Chart> {
    let known: Vec<(&Compared<'_>, f64, Reading)> = group
        .iter()
        .filter_map(|row| Some((*row, (cost.of)(judged, row)?, metric.read(row.measurement()?)?)))
        .collect();
    if known.len() < 2 {
        return None;
    }
    let rows: Vec<&Compared<'_>> = known.iter().map(|(row, ..)| *row).collect();
    let paid: Vec<(f64, f64)> =
        known.iter().map(|(_, paid, reading)| (*paid, reading.value)).collect();
    let (mut frontier, mut dominated) = (Vec::new(), Vec::new());
    for ((index, (row, paid_here, reading)), name) in known.iter().enumerate().zip(names(&rows)) {
        let point = Point {
            x: *paid_here,
            y: reading.value,
            interval: reading.interval,
            label: Some(name),
            tip: format!("{}\n{}\n{}", tip(row), metric.figure(reading), (cost.text)(*paid_here)),
        };
        if is_dominated(index, &paid, metric.better) {
            dominated.push(point)
        } else {
            frontier.push(point)
        }
    }
    frontier.sort_by(|a, b| a.x.total_cmp(&b.x));
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: {} against {}", metric.title, cost.name);
    let plane = Plane {
        x: Axis { title: cost.axis.into(), scale: Scale::Log, format: cost.format },
        y: Axis { title: metric.axis(), scale: Scale::Linear, format: metric.format },
        lines: vec![
            Line {
                name: "Pareto frontier".into(),
                ink: "$c1",
                stroke: Stroke::Steps,
                points: frontier,
            },
            Line {
                name: "dominated".into(),
                ink: "$faint",
                stroke: Stroke::Points,
                points: dominated,
            },
        ],
        level: None,
    };
    Some(Chart {
        id: study.id(&format!("{workload}-{}-by-{}", metric.quantity, cost.name)),
        caption:
            "On the frontier nothing else costs less and is better; what it dominates is grey."
                .into(),
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
    let gain =
        |other: f64| if better == Better::Higher { other - quality } else { quality - other };
    sizes.iter().any(|&(other, value)| {
        other <= bytes && gain(value) >= 0.0 && (other < bytes || gain(value) > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_is_what_nobody_beats_in_both() {
        let sizes = [(100.0, 98.0), (25.0, 97.5), (30.0, 97.0), (12.0, 90.0), (100.0, 98.0)];
        let dominated =
            |better| (0..5).map(|i| is_dominated(i, &sizes, better)).collect::<Vec<_>>();
        assert_eq!(dominated(Better::Higher), [false, false, true, false, false]);
        assert_eq!(dominated(Better::Lower), [true, true, true, false, true]);
    }
}
