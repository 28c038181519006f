//! Curves over a run: loss against step and over time, memory over time. They are thinned to the
//! resolution of a picture. Seeds of one configuration, if they were recorded at the same places,
//! are their mean in a band from the least to the greatest. Any other curve is drawn as recorded.

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

const KINDS: [CurveKind; 4] = [
    CurveKind {
        quantity: "validation",
        over: "step",
        title: "Validation loss against step",
        y: ("loss · lower is better", "plain"),
        x: ("step", "plain"),
    },
    CurveKind {
        quantity: "validation",
        over: "time_ns",
        title: "Validation loss over time",
        y: ("loss · lower is better", "plain"),
        x: ("time since the start of the run", "time"),
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
    let (mut lines, mut count, mut banded) = (Vec::new(), 0, false);
    for ((row, name), ink) in rows.iter().zip(names(&rows)).zip(INKS.iter().cycle()) {
        let curves = of_kind(row);
        count += curves.len();
        let band = Band::of(&curves);
        banded |= band.is_some();
        let line = |points| PlaneLine { name: name.clone(), ink, stroke: Stroke::Bare, points };
        if let Some(band) = band {
            lines.push(line(band.points(&row.label)));
            continue;
        }
        for curve in curves {
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
            lines.push(line(thinned(&curve.points).iter().map(point).collect()));
        }
    }
    lines.truncate(MOST_LINES);
    if lines.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    let workload = &group[0].record.case.workload;
    let title = format!("{workload}: {}", kind.title.to_lowercase());
    let runs = names.len();
    let how = match banded {
        true => {
            "A line with a band is the mean of the seeds of a configuration. The band reaches \
                 from the least to the greatest."
        }
        false => "Curves of one colour are seeds of one configuration.",
    };
    let plane = Plane {
        x: PlaneAxis { title: kind.x.0.into(), scale: PlaneScale::Linear, format: kind.x.1 },
        y: PlaneAxis { title: kind.y.0.into(), scale: PlaneScale::Linear, format: kind.y.1 },
        lines,
        level: None,
    };
    Some(Chart {
        id: study.id(&format!("{workload}-{}-over-{}", kind.quantity, kind.over)),
        caption: format!("{count} recorded curves of {runs} configurations. {how}"),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::Y),
        summary: format!("{title}, {count} curves"),
        records: anchors(rows),
        title,
    })
}

/// Seeds of a configuration together.
struct Band {
    seeds: Vec<u64>,
    /// Place, least, mean, greatest.
    points: Vec<(f64, [f64; 3])>,
}

impl Band {
    /// That of several curves with the same places; `None` of any other.
    fn of(curves: &[Curve]) -> Option<Self> {
        let [first, others @ ..] = curves else { return None };
        let places = |curve: &Curve| curve.points.iter().map(|point| point.0).collect::<Vec<_>>();
        let is_same = |other: &Curve| places(other) == places(first);
        if others.is_empty() || !others.iter().all(is_same) {
            return None;
        }
        let point = |(at, &(x, _)): (usize, &(f64, f64))| {
            let heights = || curves.iter().map(|curve| curve.points[at].1);
            let mean = heights().sum::<f64>() / curves.len() as f64;
            let (least, greatest) = (heights().reduce(f64::min)?, heights().reduce(f64::max)?);
            Some((x, [least, mean, greatest]))
        };
        let points = first.points.iter().enumerate().filter_map(point).collect();
        Some(Self { seeds: curves.iter().filter_map(|curve| curve.seed).collect(), points })
    }

    /// Each point, or of each stretch the mean between its least and its greatest.
    fn points(&self, label: &str) -> Vec<Point> {
        let seeds = self.seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let stretch = self.points.len().div_ceil(MOST_POINTS).max(1);
        let point = |part: &[(f64, [f64; 3])]| {
            let of = |i: usize| part.iter().map(move |(_, heights)| heights[i]);
            Some(Point {
                x: part[part.len() / 2].0,
                y: of(1).sum::<f64>() / part.len() as f64,
                interval: Some((of(0).reduce(f64::min)?, of(2).reduce(f64::max)?)),
                label: None,
                tip: format!("{label}\nmean of seeds {seeds}"),
            })
        };
        self.points.chunks(stretch).filter_map(point).collect()
    }
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
    fn seeds_are_their_mean_in_a_band_if_they_have_the_same_places() {
        let curve = |seed: u64, last: f64| Curve {
            quantity: "validation_loss_nats".into(),
            over: "step".into(),
            seed: Some(seed),
            points: vec![(0.0, 5.0 + seed as f64), (last, 1.0)],
        };
        let band = Band::of(&[curve(1, 10.0), curve(2, 10.0), curve(6, 10.0)]).unwrap();
        assert_eq!(band.points, [(0.0, [6.0, 8.0, 11.0]), (10.0, [1.0; 3])]);
        let drawn = band.points("bf16");
        assert_eq!((drawn[0].y, drawn[0].interval), (8.0, Some((6.0, 11.0))));
        assert_eq!(drawn[0].tip, "bf16\nmean of seeds 1, 2, 6");
        assert!(Band::of(&[curve(1, 10.0), curve(2, 11.0)]).is_none());
        assert!(Band::of(&[curve(1, 10.0)]).is_none() && Band::of(&[]).is_none());
    }

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
