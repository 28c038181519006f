//! Forms of a model by what each costs and loses, with the front of those that nothing beats.

use super::chart::{Chart, Switch, WIDTH};
use super::plane::{Plane, PlaneAxis, PlaneLine, PlaneScale, Point, Stroke};

/// Pixels of a label with the gap to the next one.
const LINE: u32 = 15;
/// Pixels above and below the labels.
const AROUND: u32 = 90;

/// A form.
#[derive(Clone, PartialEq, Debug)]
pub struct FrontPoint {
    /// Its name.
    pub name: String,
    /// Its cost, as a share of the float model's.
    pub cost: f64,
    /// Its loss, with its interval.
    pub lost: [f64; 3],
    /// Whether nothing else is as good in everything.
    pub on_front: bool,
}

/// The picture; `cost` says what is paid and `unit` in what is lost. `None` of fewer than two
/// points, which show no choice.
pub fn front(points: &[FrontPoint], cost: &str, unit: &str) -> Option<Chart> {
    if points.len() < 2 {
        return None;
    }
    let point = |one: &FrontPoint| Point {
        x: one.cost,
        y: one.lost[0],
        interval: one.lost.iter().all(|end| end.is_finite()).then_some((one.lost[1], one.lost[2])),
        label: Some(one.name.clone()),
        tip: format!("{}\n{:.3}x {cost}\n{:.4} {unit} lost", one.name, one.cost, one.lost[0]),
    };
    let of = |on_front: bool| -> Vec<Point> {
        let mut chosen: Vec<&FrontPoint> =
            points.iter().filter(|one| one.on_front == on_front).collect();
        chosen.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        chosen.into_iter().map(point).collect()
    };
    let line = |name: &str, ink, points| PlaneLine {
        name: name.to_owned(),
        ink,
        stroke: Stroke::Points,
        points,
    };
    let plane = Plane {
        x: PlaneAxis {
            title: format!("{cost} over the float model's · lower is better"),
            scale: PlaneScale::FromZero,
            format: "ratio",
        },
        y: PlaneAxis {
            title: format!("{unit} lost · lower is better"),
            scale: PlaneScale::Linear,
            format: "plain",
        },
        lines: vec![
            line("on the front", "$c1", of(true)),
            line("something is better", "$faint", of(false)),
        ],
        level: None,
    };
    let title = format!("Loss against {cost}");
    Some(Chart {
        id: format!("loss-by-{cost}"),
        caption: "Bars are intervals. The front is of time, parameters and loss together, so that \
                  a point of it may look beaten in one picture."
            .to_owned(),
        // A label has a line of its own.
        height: (WIDTH / 2).max(LINE * points.len() as u32 + AROUND),
        option: plane.option(),
        switch: Some(Switch::X),
        summary: format!("{title}, {} forms", points.len()),
        records: Vec::new(),
        title,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, cost: f64, on_front: bool) -> FrontPoint {
        FrontPoint { name: name.to_owned(), cost, lost: [0.1, 0.0, 0.2], on_front }
    }

    #[test]
    fn every_form_is_drawn_once_with_its_interval() {
        let points = [point("float", 1.0, true), point("int8", 0.5, true), point("x", 2.0, false)];
        let chart = front(&points, "time", "%").unwrap();
        let text = chart.option.to_string();
        for one in &points {
            assert!(text.contains(&format!("\"{}", one.name)), "{} is not in {text}", one.name);
        }
        assert_eq!(front(&points[..1], "time", "%"), None);
    }
}
