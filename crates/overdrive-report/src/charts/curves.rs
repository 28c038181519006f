//! Curves over a run: loss against step, memory over time. Each is drawn as recorded, thinned to
//! the resolution of a picture.

use std::collections::BTreeSet;

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::names;
use super::plane::{INKS, Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::JudgedRow;
use overdrive_bench::measurement::Curve;

/// A kind of curve that has a chart.
struct CurveKind {
    /// How the curve's quantity begins: that of a loss ends with what it is, as `loss_nats`.
    quantity: &'static str,
    over: &'static str,
    title: &'static str,
    y: (&'static str, &'static str),
    x: (&'static str, &'static str),
}

const KINDS: [CurveKind; 3] = [
    CurveKind {
        quantity: "validation",
        over: "step",
        title: "Validation loss against step",
        y: ("loss · lower is better", "plain"),
        x: ("step", "plain"),
    },
    CurveKind {
        quantity: "training",
        over: "step",
        title: "Training loss against step",
        y: ("loss · lower is better", "plain"),
        x: ("step", "plain"),
    },
    CurveKind {
        quantity: "memory_bytes",
        over: "time_ns",
        title: "Memory over time",
        y: ("bytes in use · lower is better", "bytes"),
        x: ("time", "time"),
    },
];

/// Points of a drawn curve.
const MOST_POINTS: usize = 300;
const MOST_LINES: usize = 12;

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let groups = || study.workloads();
    groups().flat_map(|group| KINDS.iter().filter_map(|kind| chart(study, group, kind))).collect()
}

fn chart(study: &Study<'_>, group: &[&JudgedRow<'_>], kind: &CurveKind) -> Option<Chart> {
    let of_kind = |row: &JudgedRow<'_>| -> Vec<Curve> {
        let curves = row.measurement().map_or(&[][..], |m| &m.curves);
        curves
            .iter()
            .filter(|curve| curve.quantity.starts_with(kind.quantity) && curve.over == kind.over)
            .cloned()
            .collect()
    };
    let rows: Vec<&JudgedRow<'_>> =
        group.iter().filter(|row| !of_kind(row).is_empty()).copied().collect();
    let mut lines = Vec::new();
    for ((row, name), ink) in rows.iter().zip(names(&rows)).zip(INKS.iter().cycle()) {
        for curve in of_kind(row) {
            let tip = match curve.seed {
                Some(seed) => format!("{}\nseed {seed}", row.label),
                None => row.label.clone(),
            };
            let point = |&(x, y): &(f64, f64)| Point {
                x,
                y,
                interval: None,
                label: None,
                tip: tip.clone(),
            };
            let points = thinned(&curve.points).iter().map(point).collect();
            lines.push(PlaneLine { name: name.clone(), ink, stroke: Stroke::Bare, points });
        }
    }
    lines.truncate(MOST_LINES);
    if lines.is_empty() {
        return None;
    }
    let seeds: BTreeSet<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: {}", kind.title.to_lowercase());
    let (curves, runs) = (lines.len(), seeds.len());
    let plane = Plane {
        x: PlaneAxis { title: kind.x.0.into(), scale: PlaneScale::Linear, format: kind.x.1 },
        y: PlaneAxis { title: kind.y.0.into(), scale: PlaneScale::Linear, format: kind.y.1 },
        lines,
        level: None,
    };
    Some(Chart {
        id: study.id(&format!("{workload}-{}-over-{}", kind.quantity, kind.over)),
        caption: format!(
            "{curves} recorded curves of {runs} configurations; curves of one colour are seeds of \
             one configuration."
        ),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::Y),
        summary: format!("{title}, {curves} curves"),
        records: anchors(rows),
        title,
    })
}

/// Every point, or of each stretch its least and its greatest in order, so that no peak is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let ends = |part: &[(f64, f64)]| {
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (least, greatest) = (part.iter().min_by(by_height), part.iter().max_by(by_height));
        let mut both: Vec<(f64, f64)> = least.into_iter().chain(greatest).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both
    };
    points.chunks(stretch).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_curve_keeps_its_peaks() {
        let mut points: Vec<(f64, f64)> =
            (0..10_000).map(|i| (f64::from(i), f64::from(i % 10))).collect();
        points[5_003].1 = 1e6;
        points[77].1 = -5.0;
        let thin = thinned(&points);
        assert!(
            thin.len() <= MOST_POINTS + 2
                && thin.contains(&(5003.0, 1e6))
                && thin.contains(&(77.0, -5.0))
        );
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
