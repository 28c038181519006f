//! Compares the pictures of every chart with those last reviewed, and tests that others can use the
//! files.

use super::*;
use crate::Report;
use crate::gallery::gallery;

fn pictures() -> Vec<Picture> {
    let results = [gallery()];
    let charts: Vec<Chart> = Report::new(&results).charts().cloned().collect();
    draw(&charts).unwrap()
}

#[test]
fn every_chart_of_the_gallery() {
    let pictures = pictures();
    assert!(pictures.len() > 15, "{}", pictures.len());
    for picture in &pictures {
        insta::assert_snapshot!(picture.id.as_str(), picture.svg.replace("><", ">\n<"));
        assert!(
            !picture.svg.contains("NaN") && !picture.svg.contains("undefined"),
            "{}",
            picture.id
        );
        assert!(!picture.svg.contains('$'), "`{}` has a colour without a value", picture.id);
        assert!(picture.png.starts_with(b"\x89PNG"), "{}", picture.id);
    }
}

#[test]
fn a_chart_that_cannot_be_drawn_is_named() {
    let results = [gallery()];
    let mut chart = Report::new(&results).charts().next().unwrap().clone();
    chart.option = serde_json::json!({
        "series": [{"type": "custom", "renderItem": "no such mark", "data": [[0, 0]]}],
        "xAxis": {},
        "yAxis": {},
    });
    let error = draw(&[chart.clone()]).unwrap_err();
    assert_eq!(error.id, chart.id);
}
