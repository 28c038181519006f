//! The roofline (Williams, Waterman and Patterson 2009) under ceilings that were measured in the
//! same run. A point above its roof is an error of the ceiling, the count or the clock, and is
//! drawn as one.

use super::chart::{Chart, Study, WIDTH, anchors};
use super::figures::{series, summary, tip};
use super::latency_by_size::rate;
use super::plane::{Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::{JudgedResults, JudgedRow};
use overdrive_bench::ceilings::{Ceiling, CeilingKind};

/// How far above the roof a point may lie before it is an error: ceilings have intervals of their
/// own.
const SLACK: f64 = 1.02;

pub(super) fn charts(judged: &JudgedResults<'_>, study: &Study<'_>) -> Vec<Chart> {
    chart(&judged.results.ceilings, study).into_iter().collect()
}

fn chart(ceilings: &[Ceiling], study: &Study<'_>) -> Option<Chart> {
    // One roof for one machine's worth of threads: the most that both kinds were measured with.
    let threads = ceilings.iter().map(|c| c.threads).max()?;
    let best = |kind: CeilingKind| {
        let of_kind = ceilings.iter().filter(|c| c.kind == kind && c.threads == threads);
        of_kind.max_by(|a, b| a.per_second().total_cmp(&b.per_second()))
    };
    let (compute, bandwidth) = (best(CeilingKind::Compute)?, best(CeilingKind::Bandwidth)?);
    let roof = |intensity: f64| (intensity * bandwidth.per_second()).min(compute.per_second());
    let rows: Vec<&JudgedRow<'_>> = study
        .rows
        .iter()
        .filter(|row| row.record.case.configuration.threads == threads)
        .copied()
        .collect();
    let (mut under, mut above, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let (Some((x, flops)), Some(series)) = (work(row), series(row)) else { continue };
        let (y, reach) = rate(series, flops);
        drawn.push(row);
        let point = |label| Point { x, y, interval: reach, label, tip: tip(row) };
        if y > SLACK * roof(x) {
            above.push(point(Some(format!("{:.2}x the roof", y / roof(x)))));
        } else {
            under.push(point(None));
        }
    }
    if drawn.is_empty() {
        return None;
    }
    let xs = || under.iter().chain(&above).map(|point| point.x);
    let ridge = compute.per_second() / bandwidth.per_second();
    let (low, high) = (xs().fold(ridge / 4.0, f64::min), xs().fold(ridge * 4.0, f64::max));
    let corner = |x: f64, label: &str| Point {
        x,
        y: roof(x),
        interval: None,
        label: (!label.is_empty()).then(|| label.to_owned()),
        tip: label.to_owned(),
    };
    let limits = format!("{}, {}", bandwidth.name, compute.name);
    let roof_line = PlaneLine {
        name: format!("measured roof: {limits}"),
        ink: "$muted",
        stroke: Stroke::Bare,
        points: vec![corner(low, ""), corner(ridge, ""), corner(high, "")],
    };
    let beyond = above.len();
    let mut lines = vec![
        roof_line,
        PlaneLine { name: "cases".into(), ink: "$c1", stroke: Stroke::Points, points: under },
    ];
    if beyond > 0 {
        lines.push(PlaneLine {
            name: "above the roof: an error".into(),
            ink: "$bad",
            stroke: Stroke::Points,
            points: above,
        });
    }
    let title = "Roofline".to_owned();
    let plane = Plane {
        x: PlaneAxis {
            title: "FLOP per byte of compulsory traffic".into(),
            scale: PlaneScale::Log,
            format: "number",
        },
        y: PlaneAxis {
            title: "FLOP/s · higher is better".into(),
            scale: PlaneScale::Log,
            format: "number",
        },
        lines,
        level: None,
    };
    let warning = match beyond {
        0 => String::new(),
        1 => " One point lies above its roof: its traffic or a ceiling is wrong.".to_owned(),
        n => format!(" {n} points lie above their roof: their traffic or a ceiling is wrong."),
    };
    Some(Chart {
        id: study.id("roofline"),
        caption: format!(
            "Ceilings measured in this run with {threads} threads; FLOPs and bytes are the \
             graph's own count, a call's inputs and outputs once.{warning}"
        ),
        height: 440 * WIDTH / 760,
        option: plane.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    })
}

/// FLOP per byte and FLOPs of a call.
fn work(row: &JudgedRow<'_>) -> Option<(f64, u64)> {
    let work = row.measurement()?.work.as_ref().filter(|work| work.flops > 0 && work.bytes > 0)?;
    Some((work.flops as f64 / work.bytes as f64, work.flops))
}
