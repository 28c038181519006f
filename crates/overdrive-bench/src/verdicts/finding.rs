//! A finding on a case or on the control, as data, with the word for a table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exact::Exact;
use super::figure::{Estimate, Figure, Verdict};

/// The result of comparing the baseline with itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Control {
    /// Complete blocks behind its intervals; 0 where they were too few for one.
    pub blocks: usize,
    /// Figures that were found to differ from themselves. If there are any, every verdict on times
    /// is advisory.
    pub flagged: Vec<Flagged>,
}

/// A figure that differs from itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flagged {
    /// The case.
    pub case: String,
    /// The figure.
    pub figure: String,
    /// By how much.
    pub change: Estimate,
}

/// The verdict on one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseVerdict {
    /// Its id.
    pub case: String,
    /// The finding.
    pub finding: Finding,
}

/// The outcome for a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Both sides ran it.
    Compared(Box<Compared>),
    /// Outputs disagree with the reference.
    WrongOutputs(String),
    /// A process failed on it.
    Failed(String),
    /// The current program does not have it, or never ran it.
    OnlyInBaseline,
    /// The baseline does not have it: nothing to compare with.
    OnlyInCurrent,
    /// Neither side could run it here.
    NotRun(String),
}

/// The figures behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The worst verdict of all figures.
    pub verdict: Verdict,
    /// Figures that vary from process to process, judged by blocks; the median of times first.
    pub figures: Vec<Figure>,
    /// Figures that every process of a side says alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exact: Vec<Exact>,
    /// Figures that one side reports and the other does not, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Ratio of device cycles, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Estimate>,
    /// Reasons for the verdict, and notes on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl Compared {
    /// The median of times, or else the first figure.
    pub fn headline(&self) -> Option<&Figure> {
        self.figures.first()
    }

    /// Whether a figure that needs no statistics is beyond what is allowed.
    pub fn is_worse_exactly(&self) -> bool {
        self.exact.iter().any(Exact::is_worse)
    }
}

impl CaseVerdict {
    /// The word for a table.
    pub fn word(&self) -> String {
        match &self.finding {
            Finding::Compared(compared) => match compared.verdict {
                Verdict::Regressed => Verdict::Regressed.to_string(),
                _ if !compared.missing.is_empty() => "MISSING".to_owned(),
                verdict => verdict.to_string(),
            },
            Finding::WrongOutputs(_) => "WRONG OUTPUTS".to_owned(),
            Finding::Failed(_) => "FAILED".to_owned(),
            Finding::OnlyInBaseline => "MISSING".to_owned(),
            Finding::OnlyInCurrent => "NEW".to_owned(),
            Finding::NotRun(_) => "NOT RUN".to_owned(),
        }
    }

    /// Notes on the verdict, in sentences.
    pub fn reasons(&self) -> Vec<String> {
        match &self.finding {
            Finding::Compared(compared) => {
                compared.missing.iter().chain(&compared.reasons).cloned().collect()
            }
            Finding::WrongOutputs(reason) | Finding::Failed(reason) | Finding::NotRun(reason) => {
                vec![reason.clone()]
            }
            Finding::OnlyInBaseline => {
                vec!["only the baseline ran it: it was removed, renamed or not reached".to_owned()]
            }
            Finding::OnlyInCurrent => {
                vec!["only the current ran it: nothing to compare with".to_owned()]
            }
        }
    }

    /// The comparison, if both sides ran the case.
    pub fn compared(&self) -> Option<&Compared> {
        match &self.finding {
            Finding::Compared(compared) => Some(compared),
            _ => None,
        }
    }

    /// The same without sentences, whose last digits may differ between machines.
    pub fn without_sentences(&self) -> Self {
        let mut bare = self.clone();
        if let Finding::Compared(compared) = &mut bare.finding {
            compared.reasons.clear();
        }
        bare
    }

    /// Whether there is no objection to it.
    pub fn is_quiet(&self) -> bool {
        matches!(self.word().as_str(), "SAME" | "IMPROVED")
    }

    /// Order of a table: what needs attention first.
    pub fn rank(&self) -> u8 {
        match (&self.finding, self.word().as_str()) {
            (Finding::WrongOutputs(_), _) => 0,
            (_, "REGRESSED") => 1,
            (Finding::Failed(_), _) => 2,
            (_, "MISSING") => 3,
            (_, "UNDECIDED") => 4,
            (Finding::OnlyInCurrent, _) => 5,
            (_, "IMPROVED") => 6,
            (Finding::NotRun(_), _) => 8,
            _ => 7,
        }
    }
}
