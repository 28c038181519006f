//! Verdicts from evidence. They are derived once at the end of a session, and again by every reader
//! of a file of them.

use overdrive_bench::nearly_equal::nearly_equal;
use overdrive_bench::verdicts::{GATE_VERSION, Verdicts};
use serde::Deserialize;

use super::judge::{control, judge};

/// Logarithms of ratios near 1 are near 0, where the last digits of two machines differ by more.
const FLOOR: f64 = 1e-3;

/// Why a text is not verdicts that this program can read.
#[derive(Debug, thiserror::Error)]
pub enum VerdictsError {
    /// Not JSON, or not of this shape.
    #[error("not verdicts of `overdrive regress`: {0}")]
    Shape(#[from] serde_json::Error),
    /// Written by another version.
    #[error(
        "gate version {0}, expected {GATE_VERSION}: judge again with this version of Overdrive"
    )]
    Version(u32),
    /// Edited.
    #[error(
        "the verdicts do not follow from the evidence beside them: {0}; use the file as \
         `overdrive regress` wrote it"
    )]
    Edited(String),
}

/// Reads verdicts, and refuses those that do not follow from their evidence.
///
/// # Errors
/// The fault, with line and column if there is one.
pub fn from_json(text: &str) -> Result<Verdicts, VerdictsError> {
    /// Other versions may differ in everything else.
    #[derive(Deserialize)]
    struct Versioned {
        gate_version: u32,
    }
    let Versioned { gate_version } = serde_json::from_str(text)?;
    if gate_version != GATE_VERSION {
        return Err(VerdictsError::Version(gate_version));
    }
    let found: Verdicts = serde_json::from_str(text)?;
    check(&found)?;
    Ok(found)
}

/// The same session with everything that is said of it derived again from the evidence.
#[must_use]
pub fn derive(verdicts: Verdicts) -> Verdicts {
    let (control, cases) = (control(&verdicts.evidence), judge(&verdicts.evidence));
    Verdicts { control, cases, ..verdicts }
}

/// Checks that the verdicts follow from the evidence, up to the last digits of another machine's
/// logarithms.
///
/// # Errors
/// The verdict that does not follow.
pub fn check(verdicts: &Verdicts) -> Result<(), VerdictsError> {
    let derived = derive(verdicts.clone());
    for (said, found) in verdicts.cases.iter().zip(&derived.cases) {
        if !nearly_equal(&said.without_sentences(), &found.without_sentences(), FLOOR) {
            let (said, found) = ((&said.case, said.word()), (&found.case, found.word()));
            let what = format!("`{}` is {}, derived is `{}`, {}", said.0, said.1, found.0, found.1);
            return Err(VerdictsError::Edited(what));
        }
    }
    if verdicts.cases.len() != derived.cases.len()
        || !nearly_equal(&verdicts.control, &derived.control, FLOOR)
    {
        return Err(VerdictsError::Edited("the list of cases or the control differs".to_owned()));
    }
    Ok(())
}
