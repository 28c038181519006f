//! Cases that the regression gate found worse: its verdict in words, beside the figures of the same
//! case.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use overdrive_bench::verdicts::{CaseVerdict, Figure, MEDIAN, Verdict};

/// One sentence for each case of these results that regressed, in the gate's order: worst first.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let Some(gate) = &judged.results.regression else { return Vec::new() };
    let over = format!("`{}` against `{}`", gate.current.name, gate.baseline.name);
    let doubt = if gate.is_advisory() {
        ", advisory only since the baseline differed from itself"
    } else {
        ""
    };
    let finding = |case: &CaseVerdict| {
        let row: &JudgedRow<'_> = judged.find(&case.case)?;
        let compared = case.compared()?;
        let mut said: Vec<String> = compared.figures.iter().filter_map(figure).collect();
        said.extend(
            compared
                .exact
                .iter()
                .filter(|exact| exact.is_worse())
                .filter_map(|exact| exact.sentence()),
        );
        let text = format!("{over}: `{}` regressed{doubt}: {}.", case.case, said.join("; "));
        (!said.is_empty()).then(|| Finding::new(Topic::Regressed, text, [row]))
    };
    gate.cases.iter().filter_map(finding).collect()
}

/// `1.10x [1.08, 1.12] the time, p 0.002`, of a figure that regressed.
fn figure(figure: &Figure) -> Option<String> {
    let what =
        if figure.name == MEDIAN { "the time".to_owned() } else { format!("in `{}`", figure.name) };
    (figure.verdict == Verdict::Regressed)
        .then(|| format!("{} {what}, p {:.3}", figure.change, figure.p))
}
