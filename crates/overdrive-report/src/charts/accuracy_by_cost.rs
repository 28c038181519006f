//! Quality against what it costs, bytes on disk or time per call, with the Pareto frontier. A point
//! is grey if its interval shows it to be worse than one that costs no more. A point that costs
//! more without a clear difference is neither grey nor on the frontier.

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::{names, tip};
use super::plane::{Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use super::size_waterfall::FILE_BYTES;
use crate::judged::{JudgedResults, JudgedRow};
use crate::leaders::believed;
use crate::quality;
use overdrive_bench::digits;
use overdrive_bench::quality::{ACCURACIES, Difference, LOSSES, Measure, Reading};

/// The cost that is paid for quality.
struct Cost {
    /// In the title: `size`.
    name: &'static str,
    axis: &'static str,
    /// How `charts.js` writes it.
    format: &'static str,
    of: fn(&JudgedResults<'_>, &JudgedRow<'_>) -> Option<f64>,
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

pub(super) fn charts(judged: &JudgedResults<'_>, study: &Study<'_>) -> Vec<Chart> {
    let metrics = || ACCURACIES.iter().chain(&LOSSES);
    let of_group = |group| {
        let pairs = COSTS.iter().flat_map(|cost| metrics().map(move |metric| (cost, metric)));
        pairs.filter_map(move |(cost, metric)| chart(judged, study, (group, cost, metric)))
    };
    study.workloads().flat_map(of_group).collect()
}

fn chart(
    judged: &JudgedResults<'_>,
    study: &Study<'_>,
    (group, cost, metric): (&[&JudgedRow<'_>], &Cost, &Measure),
) -> Option<Chart> {
    let known: Vec<(&JudgedRow<'_>, f64, Reading)> = group
        .iter()
        .filter_map(|row| Some((*row, (cost.of)(judged, row)?, metric.read(row.measurement()?)?)))
        .collect();
    if known.len() < 2 {
        return None;
    }
    let rows: Vec<&JudgedRow<'_>> = known.iter().map(|(row, ..)| *row).collect();
    let gain = |a: &Reading, b: &Reading| metric.sign() * (a.value - b.value);
    let (mut frontier, mut alike, mut dominated) = (Vec::new(), Vec::new(), Vec::new());
    for ((row, paid_here, reading), name) in known.iter().zip(names(&rows)) {
        let point = Point {
            x: *paid_here,
            y: reading.value,
            interval: reading.interval,
            label: Some(name),
            tip: format!("{}\n{}\n{}", tip(row), metric.figure(reading), (cost.text)(*paid_here)),
        };
        let others =
            || known.iter().filter(|(other, paid, _)| other.id != row.id && paid <= paid_here);
        let is_shown = |(other, ..): &(&JudgedRow<'_>, f64, Reading)| {
            matches!(
                quality::difference(metric, row, other),
                Some(Difference::Worse | Difference::FarWorse)
            )
        };
        let is_beaten = |(_, paid, other): &(&JudgedRow<'_>, f64, Reading)| {
            gain(other, reading) >= 0.0 && (paid < paid_here || gain(other, reading) > 0.0)
        };
        if others().any(is_shown) {
            dominated.push(point)
        } else if others().any(is_beaten) {
            alike.push(point)
        } else {
            frontier.push(point)
        }
    }
    frontier.sort_by(|a, b| a.x.total_cmp(&b.x));
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: {} against {}", metric.title, cost.name);
    let plane = Plane {
        x: PlaneAxis { title: cost.axis.into(), scale: PlaneScale::Log, format: cost.format },
        y: PlaneAxis {
            title: metric.axis(),
            scale: PlaneScale::Linear,
            format: quality::format(metric),
        },
        lines: vec![
            PlaneLine {
                name: "Pareto frontier".into(),
                ink: "$c1",
                stroke: Stroke::Steps,
                points: frontier,
            },
            PlaneLine {
                name: "not told apart".into(),
                ink: "$c2",
                stroke: Stroke::Points,
                points: alike,
            },
            PlaneLine {
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
        caption: "Grey: something that costs no more is better, by an interval. Not told apart: \
                  it costs more than the frontier, and its interval shows no gain or loss."
            .into(),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::X),
        summary: format!("{title}, {} cases", rows.len()),
        records: anchors(rows),
        title,
    })
}
