//! Compares the pictures of every chart with those last reviewed, and tests that others can use the
//! files.

use super::*;
use crate::Report;
use crate::charts::{FrontPoint, front};
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

/// The middle of each text of a picture.
fn texts(svg: &str) -> Vec<(f64, f64, String)> {
    let of = |text: &str| -> Option<(f64, f64, String)> {
        let (head, rest) = text.split_once('>')?;
        let place = head.split_once("transform=\"translate(")?.1.split_once(')')?.0;
        let (x, y) = place.split_once([' ', ','])?;
        let said = rest.split_once("</text>")?.0;
        Some((x.trim().parse().ok()?, y.trim().parse().ok()?, said.to_owned()))
    };
    svg.split("<text ").skip(1).filter_map(of).collect()
}

/// Every form has a label of its own, which is inside of the picture, in both widths.
#[test]
fn labels_of_a_front_neither_overlap_nor_are_cut() {
    let named = |i: u32| FrontPoint {
        name: format!("sparse24-magnitude-{i}"),
        cost: 0.3 + 0.02 * f64::from(i),
        lost: [0.1, 0.0, 0.2],
        on_front: i.is_multiple_of(3),
    };
    let forms: Vec<FrontPoint> = (0..40).map(named).collect();
    let chart = front(&forms, "time", "points").unwrap();
    let full = draw(std::slice::from_ref(&chart)).unwrap().remove(0).svg;
    let narrow = draw_narrow(std::slice::from_ref(&chart)).unwrap().remove(0);
    assert!(full.contains("\"zr") && !narrow.contains("\"zr"), "one page has both");
    for (svg, width) in [(full, WIDTH), (narrow, NARROW)] {
        assert!(svg.contains(&format!("viewBox=\"0 0 {width} ")), "{width}");
        let mut labels = texts(&svg);
        labels.retain(|(.., said)| said.starts_with("sparse24"));
        assert_eq!(labels.len(), forms.len(), "{width}");
        let mut rows: Vec<f64> = labels.iter().map(|(_, y, _)| *y).collect();
        rows.sort_by(f64::total_cmp);
        assert!(rows.windows(2).all(|pair| pair[1] - pair[0] > 11.0), "{width}: {rows:?}");
        let height = f64::from(chart.height);
        assert!(rows[0] > 6.0 && *rows.last().unwrap() < height - 6.0, "{width}: {rows:?}");
        // A letter takes less than 6 pixels.
        let end = |(x, _, said): &(f64, f64, String)| x + 6.0 * said.len() as f64;
        assert!(labels.iter().all(|label| end(label) <= f64::from(width)), "{width}: {labels:?}");
    }
}

#[test]
fn references_of_a_second_picture_are_to_its_own_parts() {
    let svg = "<g id=\"zr0-c0\"/><path class=\"zr0-s\" clip-path=\"url(#zr0-c0)\"/>.zr0-s:hover{}";
    let found = apart(svg);
    for name in
        ["id=\"narrow-zr0-c0\"", "url(#narrow-zr0-c0)", "\"narrow-zr0-s\"", ".narrow-zr0-s:"]
    {
        assert!(found.contains(name), "{found}");
    }
}
