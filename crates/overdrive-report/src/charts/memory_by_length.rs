//! Peak memory against sequence length; the latency over it is drawn by
//! [`latency_by_size`](super::latency_by_size).

use super::chart::{Chart, Study, Switch, WIDTH, anchors};
use super::figures::summary;
use super::latency_by_size::families;
use super::plane::{Plane, PlaneAxis, PlaneScale};
use crate::judged::JudgedRow;
use overdrive_bench::memory::MemoryUse;

/// The dimension that is a sequence's length.
const LENGTH: &str = "T";

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let over_length = families(study).into_iter().filter(|family| family.dimension == LENGTH);
    let chart = |family: super::latency_by_size::Family<'_>| {
        let lines = family.lines(|row| {
            let bytes = peak(row.measurement()?.memory.as_ref()?)?;
            Some((bytes as f64, None))
        });
        if lines.is_empty() {
            return None;
        }
        let title = format!("{}: memory against {LENGTH}", family.name);
        let rows: Vec<&JudgedRow<'_>> = family.members.iter().map(|(_, row)| *row).collect();
        let plane = Plane {
            x: PlaneAxis {
                title: "T · sequence length".into(),
                scale: PlaneScale::Log,
                format: "plain",
            },
            y: PlaneAxis {
                title: "peak of a call · lower is better".into(),
                scale: PlaneScale::Log,
                format: "bytes",
            },
            lines,
            level: None,
        };
        Some(Chart {
            id: study.id(&format!("{}-memory-by-length", family.name)),
            caption: "The arena that the plan asks for, exact; where there is no plan, what a \
                      call added to device or heap in a pass that was not timed (n 1)."
                .into(),
            height: WIDTH / 2,
            option: plane.option(),
            switch: Some(Switch::Y),
            summary: summary(&title, &rows),
            records: anchors(rows),
            title,
        })
    };
    over_length.filter_map(chart).collect()
}

/// The best witness: the plan knows exactly, then the device, then the host's heap.
fn peak(memory: &MemoryUse) -> Option<u64> {
    let added = |peak: Option<overdrive_bench::memory::Peak>| peak.map(|peak| peak.added_bytes());
    memory
        .planned_arena_bytes
        .or_else(|| added(memory.device))
        .or_else(|| added(memory.heap))
        .filter(|&bytes| bytes > 0)
}
