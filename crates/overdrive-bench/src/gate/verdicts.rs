//! The outcome of a session: what is said of each case, what the control says of the machine, what
//! both follow from, and the exit code.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::finding::{CaseVerdict, Compared, Control, Finding};
use super::judge::{control, judge};
use super::judgement::Verdict;
use super::metric::MEDIAN;
use crate::environment::Environment;
use crate::exit::Exit;
use crate::failure::{Failure, FailureKind};
use crate::nearly_equal::nearly_equal;

/// Version of the verdicts' schema. Raised whenever a field changes its meaning or disappears.
pub const GATE_VERSION: u32 = 2;

/// Logarithms of ratios near 1 are near 0, where the last digits of two machines differ by more.
const FLOOR: f64 = 1e-3;

/// Everything that a session of the gate says. What is said of cases and of the control follows
/// from the evidence alone; see [`Verdicts::derive`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Overdrive regression verdicts")]
pub struct Verdicts {
    /// [`GATE_VERSION`] of the program that wrote it.
    pub gate_version: u32,
    /// When the session began, in seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// The command that was run.
    pub command: String,
    /// Seed of the session.
    pub seed: u64,
    /// What is compared with.
    pub baseline: Program,
    /// What is judged.
    pub current: Program,
    /// Where.
    pub environment: Environment,
    /// The baseline against itself.
    pub control: Control,
    /// Every case that either side named, worst first.
    pub cases: Vec<CaseVerdict>,
    /// What all of that was computed from: every figure of every process, in the order in which
    /// they ran.
    pub evidence: Evidence,
    /// What a reader should know before believing it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One of the two programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// As the user named it: a revision or a command.
    pub name: String,
    /// The commit that it was built from, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What is run in each process.
    pub command: String,
}

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

impl Verdicts {
    /// Whether a text means to be verdicts, whatever else is wrong with it.
    pub fn claims(text: &str) -> bool {
        text.trim_start()
            .strip_prefix('{')
            .is_some_and(|rest| rest.trim_start().starts_with("\"gate_version\""))
    }

    /// Reads what [`Verdicts`] were written as.
    ///
    /// # Errors
    /// What is wrong, with line and column where there is one.
    pub fn from_json(text: &str) -> Result<Self, VerdictsError> {
        /// Other versions may differ in everything else.
        #[derive(Deserialize)]
        struct Versioned {
            gate_version: u32,
        }
        let Versioned { gate_version } = serde_json::from_str(text)?;
        if gate_version != GATE_VERSION {
            return Err(VerdictsError::Version(gate_version));
        }
        let found: Self = serde_json::from_str(text)?;
        found.check()?;
        Ok(found)
    }

    /// The same session with everything that is said of it derived again from the evidence.
    #[must_use]
    pub fn derive(self) -> Self {
        Self { control: control(&self.evidence), cases: judge(&self.evidence), ..self }
    }

    /// Whether what is said follows from the evidence, up to the last digits of another machine's
    /// logarithms.
    ///
    /// # Errors
    /// What does not follow.
    pub fn check(&self) -> Result<(), VerdictsError> {
        let derived = self.clone().derive();
        for (said, found) in self.cases.iter().zip(&derived.cases) {
            if !nearly_equal(&said.without_sentences(), &found.without_sentences(), FLOOR) {
                let (said, found) = ((&said.case, said.word()), (&found.case, found.word()));
                let what =
                    format!("`{}` is {}, derived is `{}`, {}", said.0, said.1, found.0, found.1);
                return Err(VerdictsError::Edited(what));
            }
        }
        if self.cases.len() != derived.cases.len()
            || !nearly_equal(&self.control, &derived.control, FLOOR)
        {
            return Err(VerdictsError::Edited(
                "the list of cases or the control differs".to_owned(),
            ));
        }
        Ok(())
    }

    /// Whether verdicts on times bind: not where the baseline differed from itself.
    pub fn is_advisory(&self) -> bool {
        !self.control.flagged.is_empty()
    }

    /// What the session means for a script: wrong outputs before regressions, those before failures
    /// and what is missing, those before doubt. A session that compared nothing has not passed.
    pub fn exit(&self) -> Exit {
        let any = |is: &dyn Fn(&Finding) -> bool| self.cases.iter().any(|case| is(&case.finding));
        let compared = |is: &dyn Fn(&Compared) -> bool| {
            self.cases.iter().filter_map(CaseVerdict::compared).any(is)
        };
        let binds = |compared: &Compared| compared.is_worse_exactly() || !self.is_advisory();
        let ended_early = self.evidence.ended_early.as_ref();
        let broke = |failure: &Failure| failure.kind != FailureKind::Skipped;
        if any(&|finding| matches!(finding, Finding::WrongOutputs(_))) {
            Exit::WrongOutputs
        } else if compared(&|case| case.verdict == Verdict::Regressed && binds(case)) {
            Exit::Regression
        } else if ended_early.is_some_and(broke)
            || any(&|finding| matches!(finding, Finding::Failed(_) | Finding::OnlyInBaseline))
            || compared(&|case| !case.missing.is_empty())
        {
            Exit::Harness
        } else if ended_early.is_some() || compared(&|case| case.verdict == Verdict::Undecided) {
            Exit::Inconclusive
        } else if !compared(&|_| true) {
            Exit::Harness
        } else if self.is_advisory() {
            Exit::Inconclusive
        } else {
            Exit::Fine
        }
    }

    /// `1 REGRESSED, 3 SAME; the control is clean; ...`: the first line of every form.
    pub fn headline(&self) -> String {
        let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
        for case in &self.cases {
            *counts.entry((case.rank(), case.word())).or_default() += 1;
        }
        let counted: Vec<String> =
            counts.into_iter().map(|((_, word), count)| format!("{count} {word}")).collect();
        let mut line =
            if counted.is_empty() { "nothing was compared".to_owned() } else { counted.join(", ") };
        line += &match (self.control.flagged.len(), self.control.blocks) {
            (0, 0) => "; too few blocks for a control".to_owned(),
            (0, _) => "; the control is clean".to_owned(),
            (count, _) => format!(
                "; ADVISORY ONLY: the baseline differs from itself in {count} {}",
                if count == 1 { "figure" } else { "figures" }
            ),
        };
        if let Some(median) = self.typical_minimum_detectable() {
            line += &format!(
                "; a slowdown of {:.1} % is detectable in the median case",
                100.0 * (median - 1.0)
            );
        }
        if let Some(failure) = &self.evidence.ended_early {
            line += &format!("; ended early: {}", failure.reason);
        }
        line
    }

    fn typical_minimum_detectable(&self) -> Option<f64> {
        let medians = self.cases.iter().filter_map(|case| case.compared()?.headline());
        let timed =
            medians.filter(|figure| figure.name == MEDIAN).map(|figure| figure.minimum_detectable);
        Some(crate::statistics::Sorted::new(&timed.collect::<Vec<_>>())?.median())
    }
}

/// The JSON Schema of [`Verdicts`], as published in `docs/gate.schema.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Verdicts);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}
