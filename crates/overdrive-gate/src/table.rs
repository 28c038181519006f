//! Verdicts as a table, before it is known where it will be printed.

use overdrive_bench::digits;
use overdrive_bench::table::{Align, Table, cell};
use overdrive_bench::verdicts::{CaseVerdict, Estimate, Figure, MEDIAN};

/// One row a case, in the order given, with its headline: the median of times, where there is one.
pub(super) fn table(cases: &[&CaseVerdict]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Case", Left),
        ("Verdict", Left),
        ("Time [99 %]", Right),
        ("Baseline", Right),
        ("Current", Right),
        ("p", Right),
        ("Detectable", Right),
        ("Blocks", Right),
    ]);
    for case in cases {
        let headline = case.compared().and_then(|compared| compared.headline());
        let figure = |read: &dyn Fn(&Figure) -> String| cell(headline.map(read));
        table.push(vec![
            case.case.clone(),
            case.word(),
            figure(&|figure| figure.change.to_string()),
            figure(&|figure| value(figure, figure.baseline)),
            figure(&|figure| value(figure, figure.current)),
            figure(&|figure| format!("{:.3}", figure.p)),
            figure(&detectable),
            figure(&|figure| figure.blocks.to_string()),
        ]);
    }
    table.without_unknown_columns()
}

fn value(figure: &Figure, value: f64) -> String {
    if figure.name == MEDIAN {
        digits::time(value, None)
    } else {
        format!("{value:.4} ({})", figure.name)
    }
}

/// The smallest change for the worse that would have been seen.
pub(super) fn detectable(figure: &Figure) -> String {
    match figure.change {
        Estimate::Ratio { .. } => format!("{:+.1} %", 100.0 * (figure.minimum_detectable - 1.0)),
        Estimate::Difference { .. } => format!("{:.3}", figure.minimum_detectable),
    }
}
