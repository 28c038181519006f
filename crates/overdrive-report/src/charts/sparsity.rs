//! Gains and costs of sparsity: speed-up and quality against the share of zeros.

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::tip;
use super::plane::{INKS, Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::JudgedRow;
use crate::quality;
use overdrive_bench::quality::{ACCURACIES, LOSSES, Measure};

/// Quantity: share of zeros among the weights or the scores, in per cent.
const SPARSITY: &str = "sparsity_percent";

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let speed = chart(study, "speed-up", |row| {
        let gain = row.speedup()?;
        Some((gain.ratio(), Some((gain.interval().low, gain.interval().high))))
    });
    let quality = ACCURACIES.iter().chain(&LOSSES).filter_map(|metric| quality(study, metric));
    speed.into_iter().chain(quality).collect()
}

fn quality(study: &Study<'_>, metric: &Measure) -> Option<Chart> {
    let mut chart = chart(study, metric.quantity, |row| {
        let reading = metric.read(row.measurement()?)?;
        Some((reading.value, reading.interval))
    })?;
    let lines = lines(study, |row| {
        let reading = metric.read(row.measurement()?)?;
        Some((reading.value, reading.interval))
    });
    let y = PlaneAxis {
        title: metric.axis(),
        scale: PlaneScale::Linear,
        format: quality::format(metric),
    };
    chart.option = Plane { x: x_axis(), y, lines, level: None }.option();
    chart.switch = None;
    Some(chart)
}

fn x_axis() -> PlaneAxis {
    PlaneAxis { title: "zeros".into(), scale: PlaneScale::Linear, format: "percent" }
}

type ValueAndInterval = (f64, Option<(f64, f64)>);

fn chart(
    study: &Study<'_>,
    what: &str,
    value: impl Fn(&JudgedRow<'_>) -> Option<ValueAndInterval>,
) -> Option<Chart> {
    let drawn: Vec<&JudgedRow<'_>> = study
        .rows
        .iter()
        .filter(|row| sparsity(row).is_some() && value(row).is_some())
        .copied()
        .collect();
    let lines = lines(study, value);
    if lines.is_empty() {
        return None;
    }
    let title = format!("{what} against sparsity");
    let plane = Plane {
        x: x_axis(),
        y: PlaneAxis {
            title: "speed-up over dense · higher is better".into(),
            scale: PlaneScale::Log,
            format: "ratio",
        },
        lines,
        level: Some((1.0, "as fast as dense")),
    };
    Some(Chart {
        id: study.id(&format!("{what}-by-sparsity")),
        caption: "Each point with its 95 % interval, where one was recorded.".into(),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::Y),
        summary: format!("{title}, {} cases", drawn.len()),
        records: anchors(drawn),
        title,
    })
}

fn sparsity(row: &JudgedRow<'_>) -> Option<f64> {
    row.measurement()?.quantities.get(SPARSITY).copied()
}

/// A line for each workload, over its sparsities.
fn lines(
    study: &Study<'_>,
    value: impl Fn(&JudgedRow<'_>) -> Option<ValueAndInterval>,
) -> Vec<PlaneLine> {
    let line = |(group, ink): (&[&JudgedRow<'_>], &&'static str)| {
        let mut points: Vec<Point> = group
            .iter()
            .filter_map(|row| {
                let (x, (y, interval)) = (sparsity(row)?, value(row)?);
                Some(Point { x, y, interval, label: None, tip: tip(row) })
            })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let name = group[0].record.case.workload.to_string();
        PlaneLine { name, ink, stroke: Stroke::Joined, points }
    };
    study
        .workloads()
        .zip(INKS[1..].iter().cycle())
        .map(line)
        .filter(|line| !line.points.is_empty())
        .collect()
}
