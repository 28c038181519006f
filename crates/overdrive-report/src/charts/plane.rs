//! The layout of charts over two axes: named lines or clouds of points, each with its interval,
//! axes with their quantity, direction and round ticks.

use serde_json::{Value, json};

/// A chart over two axes.
pub(super) struct Plane {
    pub(super) x: PlaneAxis,
    pub(super) y: PlaneAxis,
    pub(super) lines: Vec<PlaneLine>,
    /// A level that everything is held against: 1 of a ratio, 100 % of an efficiency.
    pub(super) level: Option<(f64, &'static str)>,
}

/// One axis.
pub(super) struct PlaneAxis {
    /// Quantity, and which direction is better where one is.
    pub(super) title: String,
    pub(super) scale: PlaneScale,
    /// How `charts.js` writes its values: `time`, `bytes`, `ratio`.
    pub(super) format: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaneScale {
    /// As far as the data reach.
    Linear,
    /// From 0: what is drawn is a share.
    FromZero,
    Log,
}

/// Points of one name and colour.
pub(super) struct PlaneLine {
    pub(super) name: String,
    pub(super) ink: &'static str,
    pub(super) stroke: Stroke,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stroke {
    /// Points that a line joins.
    Joined,
    /// Points that steps join: the best so far.
    Steps,
    /// Points alone.
    Points,
    /// A line without points. Intervals are a band around it.
    Bare,
    /// The same, dashed: an ideal or a limit.
    Dashed,
}

/// One point.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) interval: Option<(f64, f64)>,
    /// The text next to it.
    pub(super) label: Option<String>,
    /// For who points at it.
    pub(super) tip: String,
}

/// Width of a letter of a label, estimated: a file is drawn without a font's widths.
const LETTER: f64 = 5.9;
/// Colours of lines, the baseline's grey first.
pub(super) const INKS: [&str; 7] = ["$c0", "$c1", "$c2", "$c3", "$c4", "$c5", "$c6"];
/// Shapes beside the colours, so that neither alone tells lines apart.
const SYMBOLS: [&str; 5] = ["circle", "rect", "triangle", "diamond", "emptyCircle"];

impl Plane {
    /// The option.
    pub(super) fn option(&self) -> Value {
        let (xs, ys): (Vec<f64>, Vec<f64>) =
            self.lines.iter().flat_map(|line| &line.points).map(|p| (p.x, p.y)).unzip();
        let reach = self.lines.iter().flat_map(|line| &line.points).filter_map(|p| p.interval);
        let ys: Vec<f64> = ys
            .into_iter()
            .chain(reach.flat_map(|(low, high)| [low, high]))
            .chain(self.level.map(|(at, _)| at))
            .collect();
        let mut y = self.y.option(&ys);
        y["nameLocation"] = json!("end");
        y["nameTextStyle"] = json!({"align": "left", "padding": [0, 0, 4, -54]});
        y["nameGap"] = json!(14);
        let mut x = self.x.option(&xs);
        x["nameLocation"] = json!("middle");
        x["nameGap"] = json!(30);
        x["splitLine"] = json!({"show": false});
        let named: Vec<&str> = self
            .lines
            .iter()
            .map(|line| line.name.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        let legend = named.len() > 1;
        let lines = self.lines.iter().enumerate();
        let series: Vec<_> =
            lines.flat_map(|(i, line)| line.series(i, self.margin())).chain(self.level()).collect();
        json!({
            "grid": {"left": 62, "right": self.margin(), "top": 36, "bottom": 50,
                "outerBoundsMode": "none"},
            "legend": {"show": legend, "top": 0, "left": 0, "type": "plain", "itemWidth": 18,
                "itemHeight": 9, "data": named},
            "xAxis": x,
            "yAxis": y,
            "tooltip": {"trigger": "item"},
            "series": series,
        })
    }

    /// Room on the right. Labels stand there in a column, each joined to its point by a line, so
    /// that they cover neither points nor each other.
    fn margin(&self) -> u32 {
        let labels = self
            .lines
            .iter()
            .flat_map(|line| &line.points)
            .filter_map(|point| point.label.as_ref());
        let longest = labels.map(|label| label.chars().count()).max();
        longest.map_or(26, |letters| 34 + (letters as f64 * LETTER).ceil() as u32)
    }

    fn level(&self) -> Option<Value> {
        let (at, name) = self.level?;
        Some(json!({"type": "line", "data": [], "silent": true, "markLine": {
            "silent": true, "symbol": "none", "data": [{"yAxis": at}],
            "label": {"formatter": name, "position": "insideEndTop", "color": "$muted",
                "fontSize": 11},
            "lineStyle": {"color": "$faint", "type": "dashed", "width": 1},
        }}))
    }
}

impl PlaneAxis {
    /// The labels of a logarithmic axis. They are the values themselves if these are few powers of
    /// two, powers of two for bytes, otherwise round decimal numbers.
    fn ticks(&self, values: &[f64], (low, high): (f64, f64)) -> Vec<f64> {
        let mut distinct = values.to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        let powers = distinct.iter().all(|value| *value >= 1.0 && value.log2().fract() == 0.0);
        match self.format {
            "plain" if powers && (2..=10).contains(&distinct.len()) => distinct,
            "bytes" => binary_ticks(low, high),
            _ => log_ticks(low, high),
        }
    }

    fn option(&self, values: &[f64]) -> Value {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut option =
            json!({"name": self.title, "axisLabel": {"formatter": format!("fn:{}", self.format)}});
        match self.scale {
            PlaneScale::FromZero => {
                option["type"] = json!("value");
                option["min"] = json!(0);
            }
            PlaneScale::Linear => {
                option["type"] = json!("value");
                option["scale"] = json!(low > 0.6 * high);
            }
            PlaneScale::Log => {
                option["type"] = json!("log");
                let ticks = self.ticks(values, (low, high));
                option["min"] = json!(ticks.first());
                option["max"] = json!(ticks.last());
                for part in ["axisLabel", "axisTick", "splitLine"] {
                    option[part]["customValues"] = json!(ticks);
                }
            }
        }
        option
    }
}

impl PlaneLine {
    fn series(&self, index: usize, margin: u32) -> Vec<Value> {
        let point = |point: &Point| {
            let mut item = json!({"value": [point.x, point.y], "tip": point.tip});
            if let Some(label) = &point.label {
                item["label"] = json!({"show": true, "formatter": label.replace('{', "("),
                    "color": "$muted", "fontSize": 11,
                    "position": "right", "lineHeight": 12, "minMargin": 2});
            }
            item
        };
        let points: Vec<Value> = self.points.iter().map(point).collect();
        let symbol = match self.stroke {
            Stroke::Bare | Stroke::Dashed => "none",
            Stroke::Points => "circle",
            _ => SYMBOLS[index % SYMBOLS.len()],
        };
        let kind = if self.stroke == Stroke::Points { "scatter" } else { "line" };
        let mut series = json!({"type": kind, "name": self.name, "color": self.ink,
            "symbol": symbol, "symbolSize": 8, "data": points,
            "lineStyle": {"width": 2, "color": self.ink,
                "type": if self.stroke == Stroke::Dashed { "dashed" } else { "solid" }},
            "z": 4});
        if self.points.iter().any(|point| point.label.is_some()) {
            // `charts.js` knows the width that the margin is taken from.
            series["labelLayout"] =
                json!({"margin": margin, "align": "left", "moveOverlap": "shiftY"});
            series["labelLine"] =
                json!({"show": true, "length2": 6, "lineStyle": {"color": "$line", "width": 1}});
        }
        if self.stroke == Stroke::Steps {
            series["step"] = json!("end");
        }
        let intervals: Vec<Value> = self
            .points
            .iter()
            .filter_map(|p| p.interval.map(|(low, high)| json!([p.x, low, high])))
            .collect();
        let form = if self.stroke == Stroke::Bare { "band" } else { "interval" };
        let mark = json!({"type": "custom", "name": self.name, "renderItem": form, "clip": true,
            "upright": true, "ink": self.ink,
            "data": intervals, "encode": {"x": 0, "y": [1, 2]}, "silent": true, "z": 3});
        if intervals.is_empty() { vec![series] } else { vec![series, mark] }
    }
}

/// Round ticks 1, 2, 5 times powers of ten around `low` and `high`, powers alone over more than
/// three decades. Values of the axis that are not positive have no place on it and are ignored.
pub(super) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    if !(low > 0.0 && high.is_finite()) {
        return vec![1.0, 10.0];
    }
    let steps: &[f64] = if (high / low).log10() > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let (first, last) = (low.log10().floor() as i32 - 1, high.log10().ceil() as i32 + 1);
    let all: Vec<f64> = (first..=last)
        .flat_map(|power| {
            steps.iter().map(move |step| format!("{step}e{power}").parse().expect("a number"))
        })
        .collect();
    let from = all.iter().rposition(|&tick| tick <= low * 1.001).unwrap_or(0);
    let to = all.iter().position(|&tick| tick >= high * 0.999).unwrap_or(all.len() - 1);
    all[from..=to.max(from + 1)].to_vec()
}

/// Powers of two around `low` and `high`, at most nine of them.
fn binary_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.max(1.0).log2().floor() as i32, high.max(2.0).log2().ceil() as i32);
    let step = ((last - first) as usize).div_ceil(8).max(1);
    let end = first + (last - first + step as i32 - 1) / step as i32 * step as i32;
    (first..=end.max(first + 1)).step_by(step).map(|power| f64::from(power).exp2()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose_the_data() {
        assert_eq!(log_ticks(1.4, 9.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log_ticks(2.0, 2.0), [2.0, 5.0]);
        assert_eq!(log_ticks(0.03, 500.0), [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(log_ticks(0.0, 5.0), [1.0, 10.0]);
        assert_eq!(binary_ticks(900.0, 4000.0), [512.0, 1024.0, 2048.0, 4096.0]);
        let wide = binary_ticks(3.0, 1e9);
        assert!(wide.len() <= 9 && wide[0] <= 3.0 && *wide.last().unwrap() >= 1e9, "{wide:?}");
    }
}
