//! Verdicts as JUnit XML, which continuous-integration services show as tests: a regression is a
//! failed test, doubt is a skipped one.

use super::table::detectable;
use overdrive_bench::verdicts::{CaseVerdict, Compared, Exact, Finding, Verdicts};

/// The whole document.
pub fn junit(verdicts: &Verdicts) -> String {
    let elements: Vec<(TestOutcome, String)> =
        verdicts.cases.iter().map(|case| element(verdicts, case)).collect();
    let count = |kind: TestOutcome| elements.iter().filter(|(found, _)| *found == kind).count();
    let mut page = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    page += &format!(
        "<testsuite name=\"overdrive regress\" tests=\"{}\" failures=\"{}\" errors=\"{}\" \
         skipped=\"{}\">\n",
        elements.len(),
        count(TestOutcome::Failure),
        count(TestOutcome::Error),
        count(TestOutcome::Skipped)
    );
    page += &format!("  <system-out>{}</system-out>\n", escaped(&verdicts.headline()));
    for (_, element) in &elements {
        page += element;
    }
    page + "</testsuite>\n"
}

/// A verdict as an outcome of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestOutcome {
    Passed,
    Failure,
    Error,
    Skipped,
}

fn kind(verdicts: &Verdicts, case: &CaseVerdict) -> TestOutcome {
    let is_exactly_worse = |compared: &Compared| compared.exact.iter().any(Exact::is_worse);
    match (&case.finding, case.word().as_str()) {
        (Finding::WrongOutputs(_), _) => TestOutcome::Failure,
        (Finding::Compared(compared), "REGRESSED")
            if verdicts.is_advisory() && !is_exactly_worse(compared) =>
        {
            TestOutcome::Skipped
        }
        (_, "REGRESSED") => TestOutcome::Failure,
        (Finding::Failed(_), _) | (_, "MISSING") => TestOutcome::Error,
        _ if case.is_quiet() => TestOutcome::Passed,
        _ => TestOutcome::Skipped,
    }
}

fn element(verdicts: &Verdicts, case: &CaseVerdict) -> (TestOutcome, String) {
    let kind = kind(verdicts, case);
    let (class, name) = case.case.split_once(": ").unwrap_or(("case", &case.case));
    let mut said = case.word();
    if let Some(figure) = case.compared().and_then(Compared::headline) {
        said += &format!(": {} {}, detectable {}", figure.name, figure.change, detectable(figure));
    }
    for reason in case.reasons() {
        said += &format!("; {reason}");
    }
    let said = escaped(&said);
    let inner = match kind {
        TestOutcome::Passed => format!("<system-out>{said}</system-out>"),
        TestOutcome::Failure => format!("<failure message=\"{said}\"/>"),
        TestOutcome::Error => format!("<error message=\"{said}\"/>"),
        TestOutcome::Skipped => format!("<skipped message=\"{said}\"/>"),
    };
    let (class, name) = (escaped(class), escaped(name));
    (kind, format!("  <testcase classname=\"{class}\" name=\"{name}\">{inner}</testcase>\n"))
}

/// Text for an element or an attribute; what XML 1.0 cannot hold at all becomes a replacement
/// character.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' | '\r' => out.push(' '),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}
