//! Time and rate against the size of the work, on two logarithmic axes: attention over its length,
//! products over their edge.

use std::collections::BTreeMap;

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::{ink, interval, names, series, summary, tip};
use super::plane::{Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::JudgedRow;
use overdrive_bench::case::Workload;
use overdrive_bench::series::Series;

/// Rows of one family with the size of each.
pub(super) struct Family<'a> {
    pub(super) name: String,
    /// The dimension of the size: `T`, `m = n = k`.
    pub(super) dimension: String,
    pub(super) members: Vec<(f64, &'a JudgedRow<'a>)>,
}

/// Workloads of one name that differ in one dimension alone, or in several that are equal (a square
/// product), at two sizes or more.
pub(super) fn families<'a>(study: &Study<'a>) -> Vec<Family<'a>> {
    let mut by_name: BTreeMap<&str, Vec<&'a JudgedRow<'a>>> = BTreeMap::new();
    for row in study.rows {
        by_name.entry(&row.record.case.workload.name).or_default().push(row);
    }
    by_name.into_iter().filter_map(|(name, rows)| family(name, &rows)).collect()
}

fn family<'a>(name: &str, rows: &[&'a JudgedRow<'a>]) -> Option<Family<'a>> {
    let first = &rows[0].record.case.workload.dimensions;
    let same_names = |w: &Workload| w.dimensions.keys().eq(first.keys());
    if !rows.iter().all(|row| same_names(&row.record.case.workload)) {
        return None;
    }
    let varies = |key: &&String| {
        rows.iter().any(|row| row.record.case.workload.dimensions[*key] != first[*key])
    };
    let varying: Vec<&String> = first.keys().filter(varies).collect();
    let size = |row: &JudgedRow<'_>| {
        let sizes: Vec<u64> =
            varying.iter().map(|key| row.record.case.workload.dimensions[*key]).collect();
        sizes.iter().all(|size| *size == sizes[0]).then(|| sizes[0] as f64)
    };
    if varying.is_empty() {
        return None;
    }
    let members = rows.iter().map(|row| Some((size(row)?, *row))).collect::<Option<Vec<_>>>()?;
    let dimension = varying.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" = ");
    Some(Family { name: name.to_owned(), dimension, members })
}

impl Family<'_> {
    /// One line for each configuration that has `value` at two sizes or more.
    pub(super) fn lines(
        &self,
        value: impl Fn(&JudgedRow<'_>) -> Option<(f64, Option<(f64, f64)>)>,
    ) -> Vec<PlaneLine> {
        let rows: Vec<&JudgedRow<'_>> = self.members.iter().map(|(_, row)| *row).collect();
        let mut lines: Vec<PlaneLine> = Vec::new();
        let mut inks = Vec::new();
        for ((size, row), name) in self.members.iter().zip(names(&rows)) {
            let Some((y, interval)) = value(row) else { continue };
            let point = Point { x: *size, y, interval, label: None, tip: tip(row) };
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => {
                    let ink = ink(&name, row, &mut inks);
                    lines.push(PlaneLine {
                        name,
                        ink,
                        stroke: Stroke::Joined,
                        points: vec![point],
                    });
                }
            }
        }
        lines.retain(|line| line.points.len() > 1);
        for line in &mut lines {
            line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        lines
    }
}

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    families(study)
        .iter()
        .flat_map(|family| [time_chart(study, family), rate_chart(study, family)])
        .flatten()
        .collect()
}

fn time_chart(study: &Study<'_>, family: &Family<'_>) -> Option<Chart> {
    let lines = family.lines(|row| {
        let series = series(row)?;
        Some((series.summary.median_ns, interval(series)))
    });
    let axis = PlaneAxis {
        title: "time per call · lower is better".into(),
        scale: PlaneScale::Log,
        format: "time",
    };
    chart(study, family, "time", (axis, lines))
}

fn rate_chart(study: &Study<'_>, family: &Family<'_>) -> Option<Chart> {
    let lines = family.lines(|row| {
        let (series, flops) = (series(row)?, row.measurement()?.work.as_ref()?.flops);
        (flops > 0).then(|| rate(series, flops))
    });
    let axis = PlaneAxis {
        title: "FLOP/s · higher is better".into(),
        scale: PlaneScale::Log,
        format: "number",
    };
    chart(study, family, "rate", (axis, lines))
}

/// FLOP/s at the median, and at the ends of its interval.
pub(super) fn rate(series: &Series, flops: u64) -> (f64, Option<(f64, f64)>) {
    let of = |ns: f64| flops as f64 / (ns * 1e-9);
    (of(series.summary.median_ns), interval(series).map(|(low, high)| (of(high), of(low))))
}

fn chart(
    study: &Study<'_>,
    family: &Family<'_>,
    what: &str,
    (y, lines): (PlaneAxis, Vec<PlaneLine>),
) -> Option<Chart> {
    if lines.is_empty() {
        return None;
    }
    let title = format!("{}: {what} against {}", family.name, family.dimension);
    let plane = Plane {
        x: PlaneAxis { title: family.dimension.clone(), scale: PlaneScale::Log, format: "plain" },
        y,
        lines,
        level: None,
    };
    let rows: Vec<&JudgedRow<'_>> = family.members.iter().map(|(_, row)| *row).collect();
    Some(Chart {
        id: study.id(&format!("{}-{what}-by-size", family.name)),
        caption: "Medians with their 95 % intervals, both axes logarithmic; FLOPs are the graph's \
                  own count."
            .into(),
        height: WIDTH / 2,
        option: plane.option(),
        switch: Some(Switch::Y),
        summary: summary(&title, &rows),
        records: anchors(rows),
        title,
    })
}
