//! Time against the memory that a call takes: what a way to save memory costs.

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::{names, tip};
use super::plane::{Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::{JudgedResults, JudgedRow};
use crate::leaders::believed;
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;

/// Quantity: bytes of the device that a call takes by its plan, states with them.
const PLANNED_BYTES: &str = "planned_bytes";

pub(super) fn charts(judged: &JudgedResults<'_>, study: &Study<'_>) -> Vec<Chart> {
    study.workloads().filter_map(|group| chart(judged, study, group)).collect()
}

fn chart(judged: &JudgedResults<'_>, study: &Study<'_>, group: &[&JudgedRow<'_>]) -> Option<Chart> {
    let is_planned = |row: &&JudgedRow<'_>| {
        row.measurement().is_some_and(|m| m.quantities.contains_key(PLANNED_BYTES))
    };
    if group.iter().filter(|row| is_planned(row)).count() < 2 {
        return None;
    }
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for row in group {
        let Some((measurement, series)) = believed(judged, row) else { continue };
        let Some(bytes) = taken(measurement) else { continue };
        let interval = series.summary.median_interval;
        rows.push(*row);
        points.push(Point {
            x: bytes,
            y: series.summary.median_ns,
            interval: interval.map(|interval| (interval.low_ns, interval.high_ns)),
            label: None,
            tip: format!("{}\n{}", tip(row), digits::bytes(bytes as u64)),
        });
    }
    if rows.len() < 2 {
        return None;
    }
    for (point, name) in points.iter_mut().zip(names(&rows)) {
        point.label = Some(name);
    }
    let least = |point: &Point, others: &[(f64, f64)]| {
        !others.iter().any(|&(x, y)| x <= point.x && y <= point.y && (x < point.x || y < point.y))
    };
    let places: Vec<(f64, f64)> = points.iter().map(|point| (point.x, point.y)).collect();
    let (mut frontier, others): (Vec<Point>, Vec<Point>) =
        points.into_iter().partition(|point| least(point, &places));
    frontier.sort_by(|a, b| a.x.total_cmp(&b.x));
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: time against memory");
    let line =
        |name: &str, ink, stroke, points| PlaneLine { name: name.into(), ink, stroke, points };
    let plane = Plane {
        x: PlaneAxis {
            title: "bytes of the device · smaller is better".into(),
            scale: PlaneScale::FromZero,
            format: "bytes",
        },
        y: PlaneAxis {
            title: "time per call · lower is better".into(),
            scale: PlaneScale::Linear,
            format: "time",
        },
        lines: vec![
            line("none takes less of both", "$c1", Stroke::Steps, frontier),
            line("others", "$faint", Stroke::Points, others),
        ],
        level: None,
    };
    Some(Chart {
        id: study.id(&format!("{workload}-time-by-memory")),
        caption: "States, inputs, outputs and the arena, by the plan; of another framework, the \
                  most that its first call held."
            .into(),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::Y),
        summary: format!("{title}, {} cases", rows.len()),
        records: anchors(rows),
        title,
    })
}

/// Bytes by the plan; where there is none, what the device saw.
fn taken(measurement: &Measurement) -> Option<f64> {
    let planned = measurement.quantities.get(PLANNED_BYTES).copied();
    let seen = || Some(measurement.memory.as_ref()?.device?.peak_bytes as f64);
    planned.or_else(seen)
}
