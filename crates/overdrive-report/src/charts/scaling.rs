//! Scaling: how much of the ideal speed-up more ranks or threads give.
//!
//! Efficiency of `p` workers is the time of the fewest, times their number, over `p` times the time
//! of `p`. If the work grows with the workers (weak scaling), efficiency is multiplied by the
//! growth in items of a call. Then `ranks` is one of the workload's sizes. A rank's record holds
//! the maximum over ranks of each sample, so the slowest rank decides.

use std::collections::BTreeMap;

use super::chart::{Chart, Study, WIDTH, anchors};
use super::figures::{series, summary, tip};
use super::plane::{INKS, Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};
use crate::judged::JudgedRow;
use overdrive_bench::case::{Configuration, Workload};
use overdrive_bench::statistics::ratio_of_medians;

/// Quantity with the number of devices that took part; without it, threads are the workers.
pub(super) const RANKS: &str = "ranks";
const MOST_LINES: usize = 7;

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let mut families: BTreeMap<(Workload, Configuration), Vec<(f64, &JudgedRow<'_>)>> =
        BTreeMap::new();
    for row in study.rows.iter().filter(|row| series(row).is_some()) {
        let mut configuration = row.record.case.configuration.clone();
        let ranks = row.measurement().and_then(|m| m.quantities.get(RANKS)).copied();
        let workers = ranks.unwrap_or_else(|| f64::from(configuration.threads));
        if ranks.is_none() {
            configuration.threads = 0;
        } else {
            configuration.device = String::new();
        }
        let mut workload = row.record.case.workload.clone();
        // Work of another size that counts no items, as an exchange of messages, has no ideal.
        if workload.dimensions.remove(RANKS).is_some() && items(row).is_none() {
            continue;
        }
        families.entry((workload, configuration)).or_default().push((workers, row));
    }
    families.retain(|_, members| {
        members.sort_by(|a, b| a.0.total_cmp(&b.0));
        members.windows(2).any(|pair| pair[0].0 < pair[1].0)
    });
    let drawn: Vec<&JudgedRow<'_>> =
        families.values().take(MOST_LINES).flatten().map(|(_, row)| *row).collect();
    if drawn.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<PlaneLine> = families
        .iter()
        .take(MOST_LINES)
        .zip(INKS.iter().cycle().skip(1))
        .filter_map(|(family, ink)| line(family, ink))
        .collect();
    let title = "Scaling efficiency".to_owned();
    lines.retain(|line| line.points.len() > 1);
    if lines.is_empty() {
        return Vec::new();
    }
    let plane = Plane {
        x: PlaneAxis {
            title: "workers (ranks or threads)".into(),
            scale: PlaneScale::Log,
            format: "plain",
        },
        y: PlaneAxis {
            title: "share of the ideal speed-up · higher is better".into(),
            scale: PlaneScale::FromZero,
            format: "share",
        },
        lines,
        level: Some((1.0, "ideal")),
    };
    vec![Chart {
        id: study.id("scaling"),
        caption: format!(
            "One workload on more workers, against the fewest; bootstrap intervals. Of several \
             ranks the slowest counts.{}",
            super::chart::left_out(families.len().min(MOST_LINES), families.len(), "workloads")
        ),
        height: WIDTH / 2,
        option: plane.option(),
        switch: None,
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    }]
}

/// Items that a call handles, where they are counted.
fn items(row: &JudgedRow<'_>) -> Option<f64> {
    Some(row.measurement()?.work.as_ref()?.items.as_ref()?.per_call as f64)
}

fn line(
    ((workload, configuration), members): (&(Workload, Configuration), &Vec<(f64, &JudgedRow<'_>)>),
    ink: &'static str,
) -> Option<PlaneLine> {
    let (fewest, first) = members.first()?;
    let base = series(first)?.sorted_ns();
    let point = |(workers, row): &(f64, &JudgedRow<'_>)| {
        let more = items(row).unwrap_or(1.0) / items(first).unwrap_or(1.0);
        let scale = more * fewest / workers;
        let ratio = ratio_of_medians(&base, &series(row)?.sorted_ns(), row.record.seed)?;
        Some(Point {
            x: *workers,
            y: scale * ratio.ratio,
            interval: (workers > fewest)
                .then_some((scale * ratio.interval.low, scale * ratio.interval.high)),
            label: None,
            tip: tip(row),
        })
    };
    let name = format!(
        "{workload} {} {} {}",
        configuration.backend, configuration.mode, configuration.dtype
    );
    Some(PlaneLine {
        name,
        ink,
        stroke: Stroke::Joined,
        points: members.iter().filter_map(point).collect(),
    })
}
