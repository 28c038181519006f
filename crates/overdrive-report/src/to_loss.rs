//! Steps and time to a given loss: a table of runs that learn the same task.
//!
//! The loss is the largest of the least validation losses of the runs of a workload. Every run has
//! come that far, the slowest at its best look. A run is there at its first look at this loss or
//! below.

use super::captioned::Captioned;
use super::judged::JudgedRow;
use overdrive_bench::digits;
use overdrive_bench::measurement::Curve;
use overdrive_bench::table::{Align, Table, cell};

/// How the quantity of a curve of validation begins.
const VALIDATION: &str = "validation";

/// The table of the workloads with several such runs.
pub(super) fn table(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Seeds", Right),
        ("Loss", Right),
        ("Steps to it", Right),
        ("Time to it", Right),
    ]);
    for rows in compared.chunk_by(|a, b| a.record.case.workload == b.record.case.workload) {
        let curves = || rows.iter().flat_map(|row| over(row, "step"));
        let Some(loss) = common(curves()).filter(|_| curves().nth(1).is_some()) else { continue };
        for row in rows {
            let steps = reached(over(row, "step"), loss);
            if steps.is_empty() {
                continue;
            }
            let times = reached(over(row, "time_ns"), loss);
            table.push(vec![
                row.record.case.workload.to_string(),
                row.label.clone(),
                steps.len().to_string(),
                format!("{loss:.4}"),
                cell(range(&steps, |step| step.to_string())),
                cell(range(&times, |ns| digits::time(ns, None))),
            ]);
        }
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption: "Steps and time to a validation loss, the largest of the least ones of all runs: \
                  the first look there or below, of several seeds the earliest and the latest. \
                  Time counts from the start of the run, with preparation and looks."
            .to_owned(),
        table: table.without_unknown_columns(),
    })
}

/// The validation curves of a row along something.
fn over<'a>(row: &'a JudgedRow<'_>, along: &'a str) -> impl Iterator<Item = &'a Curve> {
    let curves = row.measurement().map_or(&[][..], |measurement| &measurement.curves);
    curves.iter().filter(move |curve| curve.quantity.starts_with(VALIDATION) && curve.over == along)
}

/// The loss that all curves come to.
fn common<'a>(curves: impl Iterator<Item = &'a Curve>) -> Option<f64> {
    let least = |curve: &Curve| curve.points.iter().map(|point| point.1).reduce(f64::min);
    curves.filter_map(least).reduce(f64::max)
}

/// The first places of curves where the loss is so small.
fn reached<'a>(curves: impl Iterator<Item = &'a Curve>, loss: f64) -> Vec<f64> {
    let first = |curve: &Curve| curve.points.iter().find(|point| point.1 <= loss).map(|p| p.0);
    curves.filter_map(first).collect()
}

/// The least and the greatest, if they differ in words.
fn range(places: &[f64], words: impl Fn(f64) -> String) -> Option<String> {
    let [least, greatest] = [f64::min, f64::max].map(|end| places.iter().copied().reduce(end));
    let (least, greatest) = (words(least?), words(greatest?));
    Some(if least == greatest { least } else { format!("{least} to {greatest}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        let quantity = "validation_loss_nats".to_owned();
        Curve { quantity, over: "step".to_owned(), seed: None, points: points.to_vec() }
    }

    #[test]
    fn the_loss_is_that_of_the_slowest_at_its_best() {
        let fast = curve(&[(100.0, 3.0), (200.0, 2.0), (300.0, 1.0)]);
        let slow = curve(&[(100.0, 4.0), (200.0, 2.1), (300.0, 2.4)]);
        let both = [fast, slow];
        let loss = common(both.iter()).unwrap();
        assert_eq!(loss, 2.1);
        assert_eq!(reached(both.iter(), loss), [200.0, 200.0]);
        assert_eq!(reached(both.iter(), 3.0), [100.0, 200.0]);
        let words = |at: f64| at.to_string();
        assert_eq!(range(&[200.0, 100.0], words).unwrap(), "100 to 200");
        assert_eq!(range(&[200.0, 200.0], words).unwrap(), "200");
        assert_eq!((range(&[], words), common([].iter())), (None, None));
    }
}
