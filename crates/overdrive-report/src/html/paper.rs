//! A page of sentences, tables and still pictures, in the style of the report: for what is no
//! results of cases.

use super::tabled::{TableView, table};
use super::view::themed;
use super::{FACES, STYLE, names, raw, served};
use crate::charts::Chart;
use minijinja::{Environment, context};
use overdrive_bench::table::Table;
use serde::Serialize;

const TEMPLATE: &str = include_str!("paper.html");

/// A part of the page.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its title.
    pub title: String,
    /// Sentences; text between backticks is code.
    pub lines: Vec<String>,
    /// Charts with their pictures.
    pub pictures: Vec<StillChart>,
    /// A table.
    pub table: Option<Table>,
}

/// A chart with its pictures as SVG.
#[derive(Clone, Debug)]
pub struct StillChart {
    /// The chart.
    pub chart: Chart,
    /// In full width.
    pub svg: String,
    /// For a narrow screen.
    pub narrow: String,
}

#[derive(Serialize)]
struct PartView<'a> {
    title: &'a str,
    lines: &'a [String],
    table: Option<TableView>,
    pictures: Vec<PictureView<'a>>,
}

#[derive(Serialize)]
struct PictureView<'a> {
    title: &'a str,
    caption: &'a str,
    svg: minijinja::Value,
    narrow: minijinja::Value,
}

/// The page. `measured_on` stands below its title; `lead` is what a reader should know first.
pub fn paper((title, measured_on): (&str, &str), lead: &[String], parts: &[Part]) -> String {
    let mut environment = Environment::new();
    environment.add_filter("names", names);
    environment
        .add_template("paper.html", TEMPLATE)
        .expect("the template is part of this crate and parses");
    let template = environment.get_template("paper.html").expect("it was added above");
    let parts: Vec<PartView<'_>> = parts
        .iter()
        .map(|part| PartView {
            title: &part.title,
            lines: &part.lines,
            table: part.table.as_ref().map(table),
            pictures: part
                .pictures
                .iter()
                .map(|StillChart { chart, svg, narrow }| PictureView {
                    title: &chart.title,
                    caption: &chart.caption,
                    svg: raw(&themed(svg)),
                    narrow: raw(&themed(narrow)),
                })
                .collect(),
        })
        .collect();
    let page = context! {
        title,
        measured_on,
        lead => served(lead),
        parts => served(&parts),
        fonts => raw(FACES),
        style => raw(STYLE),
    };
    template.render(page).expect("the template asks only for what it is given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::{FrontPoint, front};

    #[test]
    fn what_a_user_typed_is_text_and_no_markup() {
        let part = Part {
            title: "<script>".to_owned(),
            lines: vec!["runs `<b>x</b>`".to_owned()],
            ..Part::default()
        };
        let page = paper(("<i>model</i>", "on <u>cpu</u>"), &["lead & more".to_owned()], &[part]);
        for text in ["<i>model", "<u>cpu", "<script>", "<b>x"] {
            assert!(!page.contains(text), "`{text}` stands in the page as it was given");
        }
        assert!(page.contains("lead &amp; more") && page.contains("<code>"));
    }

    #[test]
    fn a_narrow_screen_has_a_picture_of_its_own() {
        let points = ["a", "b"].map(|name| FrontPoint {
            name: name.to_owned(),
            cost: 1.0,
            lost: [0.0; 3],
            on_front: true,
        });
        let chart = front(&points, "time", "%").unwrap();
        let [svg, narrow] = ["<svg>full</svg>", "<svg>slim</svg>"].map(str::to_owned);
        let pictures = vec![StillChart { chart, svg, narrow }];
        let page = paper(("model", "on cpu"), &[], &[Part { pictures, ..Part::default() }]);
        assert!(page.contains("<div class=\"plot full\"><svg>full</svg></div>"), "{page}");
        assert!(page.contains("<div class=\"plot narrow\"><svg>slim</svg></div>"), "{page}");
    }
}
