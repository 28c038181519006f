//! Verdicts as a table, before it is known where it will be printed.

use super::verdicts::{CaseVerdict, Finding, Timed};
use crate::digits;
use crate::report::{Align, Table, cell};

/// One row a case, in the order given.
pub(super) fn table(cases: &[&CaseVerdict]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Case", Left),
        ("Verdict", Left),
        ("Time [95 %]", Right),
        ("Baseline", Right),
        ("Current", Right),
        ("p", Right),
        ("Detectable", Right),
        ("Blocks", Right),
    ]);
    for case in cases {
        let timed = match &case.finding {
            Finding::Timed(timed) => Some(&**timed),
            _ => None,
        };
        let figure = |read: &dyn Fn(&Timed) -> String| cell(timed.map(read));
        table.push(vec![
            case.case.clone(),
            case.word(),
            figure(&|timed| timed.time.to_string()),
            figure(&|timed| digits::time(timed.baseline_ns, None)),
            figure(&|timed| digits::time(timed.current_ns, None)),
            cell(timed.and_then(|timed| Some(format!("{:.3}", timed.p?)))),
            figure(&|timed| format!("{:+.1} %", 100.0 * (timed.minimum_detectable - 1.0))),
            figure(&|timed| timed.blocks.to_string()),
        ]);
    }
    table.without_unknown_columns()
}
