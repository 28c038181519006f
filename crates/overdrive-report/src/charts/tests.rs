//! Tests which charts there are, that each rests on records, and that each keeps the common rules.

use super::*;
use crate::Report;
use crate::gallery::gallery;
use overdrive_bench::results::Results;
use overdrive_bench::testing::example;
use overdrive_bench::work::{Items, Work};
use serde_json::Value;

fn charts(results: &Results) -> Vec<Chart> {
    Report::new(std::slice::from_ref(results)).charts().cloned().collect()
}

fn find(charts: &[Chart], id: &str) -> Chart {
    let known: Vec<&str> = charts.iter().map(|chart| chart.id.as_str()).collect();
    charts
        .iter()
        .find(|chart| chart.id == id)
        .unwrap_or_else(|| panic!("no chart `{id}` in {known:?}"))
        .clone()
}

/// The option's strings, at any depth.
fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => vec![],
    }
}

#[test]
fn every_kind_of_record_has_its_chart_and_nothing_else_is_drawn() {
    let ids: Vec<String> = charts(&gallery()).into_iter().map(|chart| chart.id).collect();
    insta::assert_snapshot!(ids.join("\n"));
    assert!(charts(&overdrive_bench::testing::results()).is_empty());
}

#[test]
fn every_chart_names_its_direction_its_records_and_a_summary() {
    let results = gallery();
    let report = Report::new(std::slice::from_ref(&results));
    for chart in report.charts() {
        let words = strings(&chart.option).join(" ");
        let directed = ["lower is better", "higher is better", "smaller is better"]
            .iter()
            .any(|d| words.contains(d));
        assert!(directed, "`{}` does not say which direction is better", chart.id);
        assert!(!chart.records.is_empty() && !chart.summary.is_empty(), "`{}`", chart.id);
        for anchor in &chart.records {
            assert!(
                report.files[0].judged.rows.iter().any(|row| row.anchor == *anchor),
                "`{}`: {anchor}",
                chart.id
            );
        }
    }
}

#[test]
fn names_of_colours_and_formats_are_known_to_the_script() {
    for chart in charts(&gallery()) {
        for text in strings(&chart.option) {
            if let Some(name) = text.strip_prefix("fn:") {
                assert!(
                    SCRIPT.contains(&format!("\n    {name}: (")),
                    "`{}` asks for `{text}`",
                    chart.id
                );
            }
            if let Some(name) = text.strip_prefix('$') {
                assert!(
                    SCRIPT.contains(&format!("{name}: '#")),
                    "`{}` asks for `{text}`",
                    chart.id
                );
            }
        }
    }
}

#[test]
fn bars_start_at_zero_and_say_interval_and_n() {
    let all = charts(&gallery());
    let bars = find(&all, "quantization-time-per-call");
    assert_eq!(
        (&bars.option["xAxis"]["min"], &bars.option["xAxis"]["type"]),
        (&0.into(), &"value".into())
    );
    let figures: Vec<&str> = strings(&bars.option["yAxis"][1]["data"]);
    let timed =
        figures.iter().filter(|figure| figure.contains("ms [") || figure.contains("µs [")).count();
    assert_eq!(timed, 4, "{figures:?}");
    assert!(
        figures.iter().all(|figure| !figure.contains('[') || figure.contains("n 20")),
        "{figures:?}"
    );
}

/// The older suite drew what had failed as a bar of no height, that is, as the fastest.
#[test]
fn a_failure_is_a_hatched_slot_with_its_reason_and_no_bar() {
    let bars = find(&charts(&gallery()), "quantization-time-per-call");
    let figures = strings(&bars.option["yAxis"][1]["data"]);
    let at = figures
        .iter()
        .position(|figure| figure.contains("no fp8 product"))
        .expect("the reason stands in its row");
    assert_eq!(bars.option["series"][0]["data"][at], "-", "there is no bar");
    let slots = bars.option["series"]
        .as_array()
        .unwrap()
        .iter()
        .find(|series| series["renderItem"] == "slot")
        .unwrap();
    assert_eq!(slots["data"][0]["value"][0], at);
}

#[test]
fn a_waterfall_whose_parts_are_not_the_file_is_refused_aloud() {
    let mut found = gallery();
    assert!(
        find(&charts(&found), "quantization-digits-mlp-b-64-waterfall")
            .caption
            .contains("byte for byte")
    );
    let parts = found
        .records
        .iter_mut()
        .filter_map(|r| r.outcome.measurement_mut()?.quantities.get_mut("file_bytes.scales"));
    parts.for_each(|bytes| *bytes += 1.0);
    let refused = find(&charts(&found), "quantization-digits-mlp-b-64-waterfall");
    assert!(
        refused.caption.contains("is not drawn: its parts hold 27181 bytes, its file 27180"),
        "{}",
        refused.caption
    );
    assert!(refused.option["series"].as_array().unwrap().is_empty());
}

#[test]
fn a_point_above_its_roof_is_an_error() {
    let mut found = gallery();
    let honest = find(&charts(&found), "kernels-roofline");
    assert!(!honest.caption.contains("above"), "{}", honest.caption);
    for record in &mut found.records {
        if let Some(work) = record.outcome.measurement_mut().and_then(|m| m.work.as_mut()) {
            work.flops *= 1000;
        }
    }
    let wrong = find(&charts(&found), "kernels-roofline");
    assert!(wrong.caption.contains("6 points lie above their roof"), "{}", wrong.caption);
    assert!(strings(&wrong.option).contains(&"above the roof: an error"));
}

#[test]
fn scaling_is_measured_against_the_fewest_ranks() {
    let chart = find(&charts(&gallery()), "training-scaling");
    let points = chart.option["series"][0]["data"].as_array().unwrap().clone();
    let place = |at: usize| {
        (points[at]["value"][0].as_f64().unwrap(), points[at]["value"][1].as_f64().unwrap())
    };
    assert_eq!(place(0), (1.0, 1.0));
    let (ranks, efficiency) = place(2);
    assert!(
        ranks == 4.0 && (0.85..0.95).contains(&efficiency),
        "83 ms over 4 times 23 ms: {efficiency}"
    );
}

#[test]
fn weak_scaling_counts_the_items_of_all_ranks() {
    let mut found = gallery();
    let ranked = |record: &&mut overdrive_bench::record::Record| {
        record.outcome.measurement().is_some_and(|m| m.quantities.contains_key("ranks"))
    };
    let base = find(&charts(&found), "training-scaling").option["series"][0]["data"].clone();
    for record in found.records.iter_mut().filter(ranked) {
        let measurement = record.outcome.measurement_mut().unwrap();
        let ranks = measurement.quantities["ranks"] as u64;
        record.case.workload.dimensions.insert("ranks".to_owned(), ranks);
        let items = Some(Items { per_call: 8 * ranks, name: "tokens".to_owned() });
        measurement.work = Some(Work { flops: 1, bytes: 1, items });
    }
    let weak = find(&charts(&found), "training-scaling").option["series"][0]["data"].clone();
    let efficiency = |points: &Value| points[2]["value"][1].as_f64().unwrap();
    assert!((efficiency(&weak) / efficiency(&base) - 4.0).abs() < 1e-9, "{weak}");
    for record in found.records.iter_mut().filter(ranked) {
        record.outcome.measurement_mut().unwrap().work = None;
    }
    let ids: Vec<String> = charts(&found).into_iter().map(|chart| chart.id).collect();
    assert!(!ids.contains(&"training-scaling".to_owned()), "exchanges have no ideal: {ids:?}");
}

#[test]
fn a_large_report_draws_a_bounded_picture_and_says_what_it_left_out() {
    let mut found = example();
    let template = found.records.clone();
    found.ladders.clear();
    for copy in 0..40 {
        for record in &template {
            let mut record = record.clone();
            record.case.workload.name += &format!(" {copy}");
            record.baseline = None;
            found.records.push(record);
        }
    }
    let chart = find(&charts(&found), "models-time-per-call");
    let rows = chart.option["yAxis"][0]["data"].as_array().unwrap().len();
    assert!(rows <= chart::MOST_ROWS, "{rows} rows");
    assert!(
        chart.caption.contains("of 123 workloads; the table has them all"),
        "{}",
        chart.caption
    );
}

#[test]
fn several_machines_stand_side_by_side_without_a_ratio() {
    let mut other = gallery();
    other.environment.cpu.model = "Another CPU".into();
    let files = [gallery(), other];
    let report = Report::new(&files);
    let chart = report.hardware.as_ref().expect("the two share every case");
    let figures = strings(&chart.option["yAxis"][1]["data"]);
    assert!(figures.iter().all(|figure| !figure.contains('x')), "{figures:?}");
    assert!(strings(&chart.option["yAxis"][0]["data"]).contains(&"Another CPU"));
    let ids: std::collections::BTreeSet<&str> =
        report.charts().map(|chart| chart.id.as_str()).collect();
    assert_eq!(ids.len(), report.charts().count(), "every chart has a name of its own");
    assert!(report.markdown().contains("Some CPU |"), "{}", report.markdown());
}

#[test]
fn a_point_is_grey_only_where_an_interval_shows_it_worse() {
    let mut results = gallery();
    let names = |results: &Results| {
        let all = charts(results);
        let chart = all.iter().find(|chart| chart.id.ends_with("top1-percent-by-size"));
        let series = chart.expect("the chart of accuracy against size").option["series"].clone();
        let of = |name: &str| {
            let is_it = |s: &&Value| s["name"] == name && s["type"] != "custom";
            let found = series.as_array()?.iter().find(is_it)?["data"].as_array()?.clone();
            let label = |point: &Value| {
                point["label"]["formatter"].as_str().expect("every point has a label").to_owned()
            };
            Some(found.iter().map(label).collect::<Vec<_>>())
        };
        ["Pareto frontier", "not told apart", "dominated"].map(|name| of(name).expect("a line"))
    };
    let none: [&str; 0] = [];
    let found = names(&results);
    assert_eq!(found[0], ["int4", "int8", "compile f32"]);
    assert_eq!(found[1], none);
    assert_eq!(found[2], ["int8-naive"]);
    // The float model as good as int8 by its interval, worse by its figure.
    let float = results.records.iter_mut().find(|record| {
        record.case.study == "quantization" && record.case.configuration.variant.is_none()
    });
    let measured = float.and_then(|record| record.outcome.measurement_mut()).expect("a figure");
    measured.quantities.insert("top1_percent".into(), 97.1);
    let found = names(&results);
    assert_eq!(found[0], ["int4", "int8"]);
    assert_eq!(found[1], ["compile f32"]);
    assert_eq!(found[2], ["int8-naive"]);
}
