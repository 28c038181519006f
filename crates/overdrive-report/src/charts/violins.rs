//! The distribution of samples: a violin of stored samples, or a strip plot if there are fewer than
//! twenty.
//!
//! The density is a Gaussian kernel estimate with Silverman's bandwidth (1986, eq. 3.31), cut at
//! the smallest and the largest sample. It shows no time that was not measured. Pictures draw at
//! most a hundred samples of a strip; the data keeps them all.

use serde_json::{Value, json};

use super::chart::{Chart, Study, anchors, left_out};
use super::figures::{interval, names, series, summary, tip};
use super::plane::{INKS, log_ticks};
use crate::judged::JudgedRow;
use overdrive_bench::digits;
use overdrive_bench::statistics::Sorted;

/// Fewer samples than this have no density worth drawing.
const FEWEST: usize = 20;
/// Places at which the density is drawn.
const PLACES: usize = 49;
const MOST_PANELS: usize = 6;
const MOST_IN_PANEL: usize = 8;
const ROW: usize = 40;

pub(super) fn charts(study: &Study<'_>) -> Vec<Chart> {
    let groups: Vec<Vec<&JudgedRow<'_>>> = study
        .workloads()
        .map(|group| {
            group
                .iter()
                .filter(|row| series(row).is_some())
                .copied()
                .take(MOST_IN_PANEL)
                .collect::<Vec<_>>()
        })
        .filter(|group| group.len() > 1)
        .collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let panels = &groups[..groups.len().min(MOST_PANELS)];
    let drawn: Vec<&JudgedRow<'_>> = panels.iter().flatten().copied().collect();
    let (option, height) = option(panels);
    let title = "Where the samples lie".to_owned();
    vec![Chart {
        id: study.id("samples"),
        caption: format!(
            "Every stored sample: a violin from {FEWEST} samples on, points below; the bar is the \
             median's 95 % interval.{}",
            left_out(panels.len(), groups.len(), "workloads")
        ),
        height,
        option,
        switch: Some(super::Switch::X),
        summary: summary(&title, &drawn),
        records: anchors(drawn),
        title,
    }]
}

fn option(panels: &[Vec<&JudgedRow<'_>>]) -> (Value, u32) {
    let (mut grids, mut xs, mut ys, mut titles, mut marks) =
        (vec![], vec![], vec![], vec![], vec![]);
    let mut top = 0;
    for (at, panel) in panels.iter().enumerate() {
        let height = ROW * panel.len();
        titles
            .push(json!({"text": panel[0].record.case.workload.to_string(), "left": 0, "top": top,
            "textStyle": {"fontSize": 12, "fontWeight": 500, "color": "$ink"}}));
        grids.push(json!({"left": 150, "right": 110, "top": top + 24, "height": height,
            "outerBoundsMode": "none"}));
        xs.push(x_axis(panel, at));
        let names: Vec<String> = names(panel);
        let medians: Vec<String> = panel
            .iter()
            .filter_map(|row| Some(digits::time(series(row)?.summary.median_ns, None)))
            .collect();
        ys.push(column(&names, at, "left", "$muted"));
        ys.push(column(&medians, at, "right", "$ink"));
        marks.extend(panel_marks(panel, at));
        top += height + 24 + 44;
    }
    let narrow: Vec<Value> = panels.iter().map(|_| json!({"left": 96, "right": 66})).collect();
    let narrow_ys: Vec<Value> = panels
        .iter()
        .flat_map(|_| [json!({"axisLabel": {"margin": 92, "width": 86}}), json!({})])
        .collect();
    let option = json!({
        "title": titles, "grid": grids, "xAxis": xs, "yAxis": ys, "series": marks,
        "tooltip": {"trigger": "item"},
        "overdrive": {"compact": {"grid": narrow, "yAxis": narrow_ys}},
    });
    (option, top as u32)
}

fn x_axis(panel: &[&JudgedRow<'_>], at: usize) -> Value {
    let summaries = panel.iter().filter_map(|row| Some(&series(row)?.summary));
    let (low, high) = summaries
        .fold((f64::INFINITY, 0.0_f64), |(low, high), s| (low.min(s.min_ns), high.max(s.max_ns)));
    let mut axis = json!({"gridIndex": at, "type": "value", "scale": true, "splitNumber": 4,
        "name": "lower is better", "nameLocation": "middle",
        "nameGap": 24, "nameTextStyle": {"fontSize": 11},
        "axisLabel": {"formatter": "fn:time", "fontSize": 11}});
    if high > 4.0 * low {
        let ticks = log_ticks(low, high);
        axis["type"] = json!("log");
        axis["min"] = json!(ticks.first());
        axis["max"] = json!(ticks.last());
        for part in ["axisLabel", "axisTick", "splitLine"] {
            axis[part]["customValues"] = json!(ticks);
        }
    }
    axis
}

fn column(words: &[String], at: usize, position: &str, ink: &str) -> Value {
    let (margin, width) = if position == "left" { (146, 140) } else { (10, 96) };
    json!({"gridIndex": at, "type": "category", "inverse": true, "position": position,
        "data": words,
        "axisLine": {"show": false}, "axisTick": {"show": false}, "splitLine": {"show": false},
        "axisLabel": {"align": "left", "margin": margin, "interval": 0, "width": width,
            "overflow": "break", "lineHeight": 12, "color": ink}})
}

fn panel_marks(panel: &[&JudgedRow<'_>], at: usize) -> Vec<Value> {
    let (mut shapes, mut inks, mut violins, mut points, mut intervals, mut medians) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for (index, row) in panel.iter().enumerate() {
        let Some(series) = series(row) else { continue };
        let ink = if row.is_baseline {
            INKS[0]
        } else {
            INKS[1 + (index + INKS.len() - 2) % (INKS.len() - 1)]
        };
        let sorted = series.sorted_ns();
        match density(&sorted) {
            Some(shape) => {
                shapes.push(json!(shape));
                inks.push(ink);
                violins.push(json!({"value": [index, series.summary.min_ns, series.summary.max_ns],
                    "tip": tip(row)}));
            }
            None => points.extend(strip(&series.times_ns()).map(|(ns, side)| {
                json!({"value": [index, ns, side], "tip": tip(row), "itemStyle": {"color": ink}})
            })),
        }
        intervals.extend(interval(series).map(|(low, high)| json!([index, low, high])));
        medians.push(json!({"value": [series.summary.median_ns, index], "tip": tip(row)}));
    }
    let place = |mut mark: Value| {
        mark["xAxisIndex"] = json!(at);
        mark["yAxisIndex"] = json!(2 * at);
        mark
    };
    vec![
        place(json!({"type": "custom", "renderItem": "violin", "shapes": shapes, "inks": inks,
            "data": violins, "encode": {"x": [1, 2], "y": 0}})),
        place(json!({"type": "custom", "renderItem": "strip", "data": points,
            "encode": {"x": 1, "y": 0}})),
        place(json!({"type": "custom", "renderItem": "interval", "ink": "$ink", "cap": 5,
            "data": intervals, "encode": {"x": [1, 2], "y": 0}, "silent": true, "z": 5})),
        place(json!({"type": "scatter", "symbol": "circle", "symbolSize": 6, "color": "$ink",
            "data": medians, "z": 6})),
    ]
}

/// Time and density, the largest density being 1; `None` where a strip says more.
fn density(sorted: &Sorted) -> Option<Vec<[f64; 2]>> {
    let n = sorted.count();
    let quartiles = (sorted.quantile(0.75) - sorted.quantile(0.25)) / 1.34;
    let spread = match sorted.standard_deviation()? {
        deviation if quartiles > 0.0 => deviation.min(quartiles),
        deviation => deviation,
    };
    if n < FEWEST || spread <= 0.0 {
        return None;
    }
    let bandwidth = 0.9 * spread * (n as f64).powf(-0.2);
    let width = sorted.max() - sorted.min();
    let at = |place: usize| sorted.min() + width * place as f64 / (PLACES - 1) as f64;
    let kernel = |time: f64| {
        // Beyond five bandwidths a kernel adds less than a pixel can show.
        let from = sorted.values().partition_point(|&sample| sample < time - 5.0 * bandwidth);
        let near =
            sorted.values()[from..].iter().take_while(|&&sample| sample <= time + 5.0 * bandwidth);
        near.map(|sample| (-0.5 * ((time - sample) / bandwidth).powi(2)).exp()).sum::<f64>()
    };
    let densities: Vec<f64> = (0..PLACES).map(|place| kernel(at(place))).collect();
    let most = densities.iter().copied().fold(0.0, f64::max);
    // A ten-thousandth of the width is less than a pixel; the ends stay where they are.
    let steps = |share: f64| (share * 1e4).round() / 1e4;
    let place = |place: usize| sorted.min() + width * steps(place as f64 / (PLACES - 1) as f64);
    Some(
        densities
            .iter()
            .enumerate()
            .map(|(at, density)| [place(at), steps(density / most)])
            .collect(),
    )
}

/// At most a hundred of the samples, evenly from all of them, each with a place beside the middle
/// from -1 to 1.
fn strip(times: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let step = times.len().div_ceil(100).max(1);
    times
        .iter()
        .step_by(step)
        .zip(0_u32..)
        .map(|(&ns, index)| (ns, f64::from(index * 7 % 11) / 5.0 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violin_ends_where_the_samples_end_and_few_samples_have_none() {
        let times: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i * i % 37)).collect();
        let sorted = Sorted::new(&times).unwrap();
        let shape = density(&sorted).unwrap();
        assert_eq!(shape[0][0], sorted.min());
        assert!((shape[PLACES - 1][0] - sorted.max()).abs() < 1e-9, "{shape:?}");
        assert!(
            shape.iter().all(|[_, d]| (0.0..=1.0).contains(d))
                && shape.iter().any(|[_, d]| *d == 1.0)
        );
        assert!(density(&Sorted::new(&times[..19]).unwrap()).is_none());
        assert!(
            density(&Sorted::new(&[5.0; 40]).unwrap()).is_none(),
            "equal samples have no width"
        );
    }

    #[test]
    fn two_clusters_are_two_bulges() {
        let times: Vec<f64> =
            (0..60).map(|i| if i % 2 == 0 { 100.0 } else { 200.0 } + f64::from(i % 7)).collect();
        let shape = density(&Sorted::new(&times).unwrap()).unwrap();
        assert!(shape[PLACES / 2][1] < 0.5 * shape[2][1].max(shape[PLACES - 3][1]), "{shape:?}");
    }
}
