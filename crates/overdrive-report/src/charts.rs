//! Every picture of a report: which there are, in the order of the page.
//!
//! Each file builds one chart from records, as an ECharts option in plain JSON. It builds none if
//! no record has its data. `docs/reports.md` says what each of them reads. Two layouts, `bars` and
//! `plane`, keep them alike. `charts.js` adds what an option cannot express, for files on disk as
//! for the live page.

mod accuracy_by_cost;
mod accuracy_by_mode;
mod backends;
mod bars;
mod chart;
mod contest;
mod cumulative;
mod curves;
mod figures;
mod front;
mod fused;
mod hardware;
mod latency_by_size;
mod loss_by_mode;
mod memory_by_length;
mod overhead;
mod plane;
mod roofline;
mod scaling;
mod size_waterfall;
mod sparsity;
#[cfg(test)]
mod tests;
mod time_by_memory;
mod violins;

pub use chart::{Chart, NARROW, Switch, WIDTH};
pub use front::{FrontPoint, front};

use super::judged::JudgedResults;
pub(super) use backends::TIME_PER_CALL;
use chart::Study;
pub(super) use contest::chart as contest;
pub(super) use hardware::chart as hardware;

/// Turns an option into a picture, together with ECharts: palette, formats, marks.
pub(crate) const SCRIPT: &str = include_str!("charts/charts.js");
/// Apache ECharts, the parts that these charts use; `assets/README.md` says how it is built.
pub(crate) const ECHARTS: &str = include_str!("../assets/echarts.min.js");
/// The one family that pictures are set in.
#[cfg(feature = "plots")]
pub(crate) const FONTS: [&[u8]; 2] =
    [include_bytes!("../assets/Roboto-Regular.ttf"), include_bytes!("../assets/Roboto-Medium.ttf")];

/// The charts of one study, by where the page shows them.
pub(super) struct Charts {
    /// Every ladder.
    pub(super) ladders: Vec<Chart>,
    /// Accuracy against what it costs.
    pub(super) costs: Vec<Chart>,
    /// All others.
    pub(super) rest: Vec<Chart>,
}

/// The charts of one study.
pub(super) fn of_study(judged: &JudgedResults<'_>, name: &str) -> Charts {
    let rows = judged.study(name);
    let study = Study { name, rows: &rows };
    let mut charts = cumulative::charts(judged, &study);
    let first = charts.len();
    charts.extend(accuracy_by_cost::charts(judged, &study));
    let leading = charts.len();
    charts.extend(fused::charts(judged, &study));
    for build in [
        accuracy_by_mode::charts,
        loss_by_mode::charts,
        size_waterfall::charts,
        backends::charts,
        latency_by_size::charts,
        memory_by_length::charts,
        sparsity::charts,
        scaling::charts,
        curves::charts,
    ] {
        charts.extend(build(&study));
    }
    charts.extend(time_by_memory::charts(judged, &study));
    charts.extend(roofline::charts(judged, &study));
    charts.extend(violins::charts(&study));
    charts.extend(overhead::charts(&study));
    distinct(&mut charts);
    let rest = charts.split_off(leading);
    let costs = charts.split_off(first);
    Charts { ladders: charts, costs, rest }
}

/// Two titles may read alike once only letters and digits are left: an ordinal then tells their ids
/// apart.
fn distinct(charts: &mut [Chart]) {
    for at in 1..charts.len() {
        let (before, rest) = charts.split_at_mut(at);
        let alike = |id: &str| before.iter().any(|chart| chart.id == id);
        let free = (2..).map(|n| format!("{}-{n}", rest[0].id)).find(|id| !alike(id));
        if alike(&rest[0].id) {
            rest[0].id = free.expect("there is always a next number");
        }
    }
}
