//! A chart before it is drawn: an ECharts option as plain JSON, with its caption and notes.

use serde_json::Value;

use crate::judged::JudgedRow;

/// Width in which a chart is drawn to a file, in CSS pixels; the live one takes the width that it
/// is given.
pub const WIDTH: u32 = 760;

/// The same for a narrow screen. A picture of [`WIDTH`] that shrinks to one has letters of half
/// their size.
pub const NARROW: u32 = 420;

/// Most rows or panels of one picture. A chart of 500 rows shows nothing; the tables have them all.
pub(super) const MOST_ROWS: usize = 48;

/// One picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Its name, unique in a report: that of its file and of its place in the page.
    pub id: String,
    /// Its title.
    pub title: String,
    /// How to read it, and what was left out.
    pub caption: String,
    /// The ECharts option. Colours, formats and marks are named as `charts.js` knows them.
    pub option: Value,
    /// Height in CSS pixels, at any width.
    pub height: u32,
    /// Whether an axis may be switched between linear and logarithmic.
    pub switch: Option<Switch>,
    /// The content of the picture in words, for readers who cannot see it.
    pub summary: String,
    /// [Anchors](super::super::anchor()) of the records that are drawn, in order, each once.
    pub records: Vec<String>,
}

impl Chart {
    /// Whether it wants the whole width of a page: names and figures stand beside its bars.
    pub fn is_wide(&self) -> bool {
        self.option["yAxis"].is_array()
    }
}

/// An axis that may be linear or logarithmic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// The horizontal one.
    X,
    /// The vertical one.
    Y,
}

/// The data of one study for charts.
pub(super) struct Study<'a> {
    pub(super) name: &'a str,
    /// By workload, baselines first.
    pub(super) rows: &'a [&'a JudgedRow<'a>],
}

impl<'a> Study<'a> {
    /// The rows of each workload, in order.
    pub(super) fn workloads(&self) -> impl Iterator<Item = &'a [&'a JudgedRow<'a>]> {
        self.rows.chunk_by(|a, b| a.record.case.workload == b.record.case.workload)
    }

    /// `STUDY-WORDS`, safe as the name of a file.
    pub(super) fn id(&self, words: &str) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let id: String = format!("{}-{words}", self.name).chars().map(safe).collect();
        id.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
    }
}

/// Each anchor once, in order.
pub(super) fn anchors<'a>(rows: impl IntoIterator<Item = &'a JudgedRow<'a>>) -> Vec<String> {
    let mut anchors = Vec::new();
    for row in rows {
        if !anchors.contains(&row.anchor) {
            anchors.push(row.anchor.clone());
        }
    }
    anchors
}

/// `12 of 500 workloads; the table has them all.`, where something was left out.
pub(super) fn left_out(shown: usize, all: usize, what: &str) -> String {
    if shown == all {
        String::new()
    } else {
        format!(" {shown} of {all} {what}; the table has them all.")
    }
}
