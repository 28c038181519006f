//! The layout of most charts: names on the left, bars from 0 in the middle, figures on the right,
//! in groups. Read as a table it says the same as the picture, and a case that gave no figure is a
//! hatched slot with its reason.

use serde_json::{Value, json};

/// One line of the picture.
pub(super) enum BarRow {
    /// The name of the group that follows.
    Heading(String),
    /// A bar.
    Bar(Bar),
    /// A case without a figure, and why.
    Slot { name: String, reason: String },
}

/// A bar from 0.
pub(super) struct Bar {
    pub(super) name: String,
    /// Its length, in pieces of one colour each; most have one.
    pub(super) pieces: Vec<Piece>,
    /// The interval of the whole; absent only where `figure` says why.
    pub(super) interval: Option<(f64, f64)>,
    /// Right of the bar: value, interval, n.
    pub(super) figure: String,
    /// The same on a narrow screen.
    pub(super) short: String,
    /// For who points at it.
    pub(super) tip: String,
}

/// A piece of a bar.
pub(super) struct Piece {
    pub(super) length: f64,
    /// Name of a colour: `$c1`.
    pub(super) ink: &'static str,
}

impl Bar {
    fn length(&self) -> f64 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    fn reach(&self) -> f64 {
        self.interval.map_or(0.0, |(_, high)| high).max(self.length())
    }
}

/// A chart of rows.
pub(super) struct BarChart {
    pub(super) rows: Vec<BarRow>,
    /// Under the bars: the quantity, ` · `, and which direction is better; a narrow screen has room
    /// for the last.
    pub(super) axis: String,
    /// Names of the pieces, in the order in which they stand in a bar; empty where there is one.
    pub(super) legend: Vec<(&'static str, &'static str)>,
}

const ROW_HEIGHT: u32 = 25;
const LETTER: f64 = 6.4;

impl BarChart {
    /// Height in pixels.
    pub(super) fn height(&self) -> u32 {
        ROW_HEIGHT * self.rows.len() as u32 + if self.legend.is_empty() { 44 } else { 76 }
    }

    /// The option. Each group has a scale of its own, from 0 to its longest bar. Groups differ by
    /// orders of magnitude, and the bars that are compared stand in one group.
    pub(super) fn option(&self) -> Value {
        let scales = self.scales();
        let names: Vec<Value> = self.rows.iter().map(name).collect();
        let figures: Vec<String> =
            self.rows.iter().map(|row| fitting(figure(row, |bar| &bar.figure), 60)).collect();
        let shorts: Vec<String> =
            self.rows.iter().map(|row| fitting(figure(row, |bar| &bar.short), 18)).collect();
        let left = width(self.rows.iter().map(text), 90.0, 250.0);
        let right = width(figures.iter().map(String::as_str), 60.0, 384.0);
        let short = width(shorts.iter().map(String::as_str), 40.0, 120.0);
        let layers =
            self.rows.iter().filter_map(bar).map(|bar| bar.pieces.len()).max().unwrap_or(0);
        let mut series: Vec<Value> = (0..layers).map(|layer| self.layer(layer, &scales)).collect();
        series.extend(self.intervals(&scales));
        series.extend(self.slots());
        series.extend(self.legend.iter().map(|(name, ink)| {
            // A series without data, for the legend: the bars are coloured one by one.
            json!({"type": "bar", "name": name, "color": ink, "data": [], "stack": "bar"})
        }));
        let top = if self.legend.is_empty() { 6 } else { 38 };
        let hidden = json!({"show": false});
        let column = |data: Value, position: &str, margin: f64, wide: f64| {
            json!({
                "type": "category", "inverse": true, "position": position, "data": data,
                "axisLine": hidden, "axisTick": hidden, "splitLine": hidden,
                "axisLabel": {"align": "left", "margin": margin, "interval": 0,
                    "hideOverlap": false,
                    "width": wide, "overflow": "break", "lineHeight": 12, "color": "$ink"},
            })
        };
        let mut option = json!({
            "grid": {"left": left + 14.0, "right": right + 16.0, "top": top, "bottom": 32,
                "outerBoundsMode": "none"},
            "xAxis": {"type": "value", "min": 0, "max": 1, "name": self.axis,
                "nameLocation": "middle", "nameGap": 12,
                "axisLabel": hidden, "axisTick": hidden, "splitLine": hidden, "axisLine": hidden},
            "yAxis": [column(json!(names), "left", left + 8.0, left),
                column(json!(figures), "right", 12.0, right)],
            "tooltip": {"trigger": "item"},
            "series": series,
            "overdrive": {"compact": {
                "grid": {"left": 128, "right": short + 14.0},
                "xAxis": {"name": self.axis.rsplit(" · ").next()},
                "yAxis": [{"axisLabel": {"margin": 124, "width": 118, "fontSize": 11}},
                    {"data": shorts, "axisLabel": {"width": short}}],
            }},
        });
        if !self.legend.is_empty() {
            let entries: Vec<&str> = self.legend.iter().map(|(name, _)| *name).collect();
            option["legend"] = json!({"top": 0, "left": 0, "data": entries, "icon": "roundRect",
                "itemWidth": 12,
                "itemHeight": 12, "selectedMode": false});
        }
        option
    }

    /// The longest reach of each row's group.
    fn scales(&self) -> Vec<f64> {
        let groups = self.rows.chunk_by(|_, next| !matches!(next, BarRow::Heading(_)));
        let scale = |group: &[BarRow]| {
            let longest = group.iter().filter_map(bar).map(Bar::reach).fold(0.0, f64::max);
            if longest > 0.0 { longest } else { 1.0 }
        };
        groups.flat_map(|group| std::iter::repeat_n(scale(group), group.len())).collect()
    }

    fn layer(&self, layer: usize, scales: &[f64]) -> Value {
        let item = |(row, scale): (&BarRow, &f64)| match bar(row)
            .and_then(|bar| Some((bar, bar.pieces.get(layer)?)))
        {
            Some((bar, piece)) => json!({
                "value": piece.length / scale,
                "itemStyle": {"color": piece.ink},
                "tip": bar.tip,
            }),
            None => json!("-"),
        };
        let data: Vec<Value> = self.rows.iter().zip(scales).map(item).collect();
        json!({"type": "bar", "stack": "bar", "barWidth": 13, "data": data})
    }

    fn intervals(&self, scales: &[f64]) -> Option<Value> {
        let mut data = Vec::new();
        for (index, (row, scale)) in self.rows.iter().zip(scales).enumerate() {
            if let Some((low, high)) = bar(row).and_then(|bar| bar.interval) {
                data.push(json!([index, low / scale, high / scale]));
            }
        }
        let mark = json!({"type": "custom", "renderItem": "interval", "ink": "$ink", "cap": 3.5,
            "data": data,
            "encode": {"x": [1, 2], "y": 0}, "silent": true, "z": 5});
        (!data.is_empty()).then_some(mark)
    }

    fn slots(&self) -> Option<Value> {
        let mut data = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            if let BarRow::Slot { reason, .. } = row {
                data.push(json!({"value": [index], "tip": reason}));
            }
        }
        let mark = json!({"type": "custom", "renderItem": "slot", "ink": "$hatch", "data": data,
            "encode": {"y": 0}});
        (!data.is_empty()).then_some(mark)
    }
}

fn bar(row: &BarRow) -> Option<&Bar> {
    match row {
        BarRow::Bar(bar) => Some(bar),
        _ => None,
    }
}

fn text(row: &BarRow) -> &str {
    match row {
        BarRow::Heading(name) | BarRow::Slot { name, .. } => name,
        BarRow::Bar(bar) => &bar.name,
    }
}

fn name(row: &BarRow) -> Value {
    match row {
        BarRow::Heading(name) => {
            json!({"value": name,
                "textStyle": {"align": "left", "fontWeight": 500, "color": "$ink",
                    "overflow": "none"}})
        }
        _ => json!({"value": text(row), "textStyle": {"align": "left", "color": "$muted"}}),
    }
}

fn figure(row: &BarRow, of: fn(&Bar) -> &String) -> &str {
    match row {
        BarRow::Heading(_) => "",
        BarRow::Bar(bar) => of(bar),
        BarRow::Slot { reason, .. } => reason,
    }
}

/// Between the parts of a figure: value, and gain over the baseline.
pub(super) const PARTS: &str = "   ";

/// The text, or its first part, or its first words up to a colon, which say how a case ended; the
/// tip has it all.
fn fitting(text: &str, most: usize) -> String {
    let fits = |text: &&str| text.chars().count() <= most;
    let first = |end: &str| text.split_once(end).map(|(first, _)| first);
    match [Some(text), first(PARTS), first(": ")].into_iter().flatten().find(fits) {
        Some(text) => text.to_owned(),
        None => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Room for the longest of `texts`, within limits. Estimated: a file is drawn without a font's
/// widths.
fn width<'t>(texts: impl IntoIterator<Item = &'t str>, least: f64, most: f64) -> f64 {
    let letters = texts.into_iter().map(|text| text.chars().count()).max().unwrap_or(0);
    (letters as f64 * LETTER).clamp(least, most).round()
}
