//! Mixes: what their parts added up to, and what they came to as a whole.

use overdrive::bench::digits;
use overdrive::bench::table::{Align, Table, cell};
use overdrive::optimize::{Asked, Decision};

/// The sentences above the table, and the table; `None` where no mix was predicted.
pub(super) fn mixes(asked: &Asked, decision: &Decision) -> Option<(Vec<String>, Table)> {
    let columns = [
        ("mix", Align::Left),
        ("figure", Align::Left),
        ("predicted", Align::Right),
        ("measured", Align::Right),
        ("measured over predicted", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let factor = |found: Option<f64>, predicted: f64| {
        let factor = found.map(|found| found / predicted).filter(|x| x.is_finite() && *x > 0.0);
        cell(factor.map(|factor| format!("{factor:.3}x")))
    };
    for one in &decision.tried {
        let Some(predicted) = &one.predicted else { continue };
        let mut push = |figure: &str, cells: [String; 3]| {
            let [predicted, measured, factor] = cells;
            let (mix, figure) = (one.form.said(), figure.to_owned());
            table.push(vec![mix, figure, predicted, measured, factor]);
        };
        if let Some(time) = predicted.time {
            let found = one.time.map(|found| found[0]);
            let share = |time: f64| format!("{time:.3}x");
            push("time", [share(time), cell(found.map(share)), factor(found, time)]);
        }
        if let Some(bytes) = predicted.bytes {
            let found = one.bytes.map(|found| found as f64);
            let measured = cell(one.bytes.map(digits::bytes));
            push("parameters", [digits::bytes(bytes), measured, factor(found, bytes as f64)]);
        }
        let found = one.chosen_by.as_ref().map(|judged| judged.lost[0]);
        let points = |lost: f64| format!("{lost:.4}");
        let cells =
            [points(predicted.lost), cell(found.map(points)), factor(found, predicted.lost)];
        push("lost", cells);
    }
    let line = format!(
        "the sum of what single layers save and lose, scaled so that modes on all layers come out \
         as measured; time is a share of float's, lost is in {} on the samples that choose",
        super::matrix::loss(asked)
    );
    (!table.rows.is_empty()).then_some((vec![line], table))
}
