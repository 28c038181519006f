//! Verdicts as JUnit XML, which continuous-integration services show as tests: a regression is a
//! failed test, doubt is a skipped one.

use super::table::detectable;
use overdrive_bench::verdicts::{CaseVerdict, Compared, Exact, Finding, Verdicts};

/// The whole document.
pub fn junit(verdicts: &Verdicts) -> String {
    let elements: Vec<(Kind, String)> =
        verdicts.cases.iter().map(|case| element(verdicts, case)).collect();
    let count = |kind: Kind| elements.iter().filter(|(found, _)| *found == kind).count();
    let mut page = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    page += &format!(
        "<testsuite name=\"overdrive regress\" tests=\"{}\" failures=\"{}\" errors=\"{}\" \
         skipped=\"{}\">\n",
        elements.len(),
        count(Kind::Failure),
        count(Kind::Error),
        count(Kind::Skipped)
    );
    page += &format!("  <system-out>{}</system-out>\n", escaped(&verdicts.headline()));
    for (_, element) in &elements {
        page += element;
    }
    page + "</testsuite>\n"
}

/// What a verdict is among tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Passed,
    Failure,
    Error,
    Skipped,
}

fn kind(verdicts: &Verdicts, case: &CaseVerdict) -> Kind {
    let is_exactly_worse = |compared: &Compared| compared.exact.iter().any(Exact::is_worse);
    match (&case.finding, case.word().as_str()) {
        (Finding::WrongOutputs(_), _) => Kind::Failure,
        (Finding::Compared(compared), "REGRESSED")
            if verdicts.is_advisory() && !is_exactly_worse(compared) =>
        {
            Kind::Skipped
        }
        (_, "REGRESSED") => Kind::Failure,
        (Finding::Failed(_), _) | (_, "MISSING") => Kind::Error,
        _ if case.is_quiet() => Kind::Passed,
        _ => Kind::Skipped,
    }
}

fn element(verdicts: &Verdicts, case: &CaseVerdict) -> (Kind, String) {
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
        Kind::Passed => format!("<system-out>{said}</system-out>"),
        Kind::Failure => format!("<failure message=\"{said}\"/>"),
        Kind::Error => format!("<error message=\"{said}\"/>"),
        Kind::Skipped => format!("<skipped message=\"{said}\"/>"),
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
