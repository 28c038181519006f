//! The outcome of a session as data: what is said of each case, what the control says of the machine, and the
//! exit code that follows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exact::Exact;
use super::judgement::{Estimate, Verdict};
use crate::environment::Environment;
use crate::exit::Exit;
use crate::outcome::Failure;

/// Version of the verdicts' schema. Raised whenever a field changes its meaning or disappears.
pub const GATE_VERSION: u32 = 1;

/// Everything that a session of the gate says.
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
    /// Processes that ended without results, with their reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_processes: Vec<String>,
    /// Why the session ended before its plan, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<Failure>,
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

/// What the baseline against itself showed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Control {
    /// Complete blocks.
    pub blocks: usize,
    /// Cases that got fresh blocks since they differed by more than 3 % from themselves.
    pub rejudged: usize,
    /// Cases that were found to differ from themselves. If there are any, every verdict is advisory.
    pub flagged: Vec<Flagged>,
}

/// A case that differs from itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flagged {
    /// The case.
    pub case: String,
    /// By how much.
    pub time: Estimate,
}

/// What is said of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseVerdict {
    /// Its id.
    pub case: String,
    /// About its time.
    pub finding: Finding,
    /// About what is exact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exact: Vec<Exact>,
    /// Medians of every process, block by block: the evidence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockTimes>,
}

/// What can be said of a case's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Both sides were timed.
    Timed(Box<Timed>),
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
    /// Only exact quantities were measured.
    ExactOnly,
    /// Too few complete blocks for an interval.
    TooFewBlocks(usize),
}

/// The figures behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timed {
    /// The verdict.
    pub verdict: Verdict,
    /// Time of the current over that of the baseline.
    pub time: Estimate,
    /// Sign-flip p after Holm's correction; only fresh blocks have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// The smallest true ratio that the procedure would have called a regression four times in five.
    pub minimum_detectable: f64,
    /// Complete blocks behind it.
    pub blocks: usize,
    /// How many blocks would decide, of an ambiguous case; absent where no reasonable number would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_to_decide: Option<usize>,
    /// Median over the baseline's processes.
    pub baseline_ns: f64,
    /// Median over the current's processes.
    pub current_ns: f64,
    /// Ratio of device cycles, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Estimate>,
    /// Why the verdict is what it is, and what to know beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// The medians of a block's processes, in the order in which they ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockTimes {
    /// Whether it judged or only screened.
    pub fresh: bool,
    /// `baseline` or `current`, and the median time per call.
    pub processes: Vec<(super::block::Side, f64)>,
}

impl CaseVerdict {
    /// The word for a table.
    pub fn word(&self) -> String {
        if self.exact.iter().any(Exact::is_worse) {
            return Verdict::Regressed.to_string();
        }
        match &self.finding {
            Finding::Timed(timed) => timed.verdict.to_string(),
            Finding::WrongOutputs(_) => "WRONG OUTPUTS".to_owned(),
            Finding::Failed(_) => "FAILED".to_owned(),
            Finding::OnlyInBaseline => "MISSING".to_owned(),
            Finding::OnlyInCurrent => "NEW".to_owned(),
            Finding::NotRun(_) => "NOT RUN".to_owned(),
            Finding::ExactOnly => Verdict::Same.to_string(),
            Finding::TooFewBlocks(_) => Verdict::Ambiguous.to_string(),
        }
    }

    /// What to know beside the verdict, in sentences.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = match &self.finding {
            Finding::Timed(timed) => timed.reasons.clone(),
            Finding::WrongOutputs(reason) | Finding::Failed(reason) | Finding::NotRun(reason) => {
                vec![reason.clone()]
            }
            Finding::OnlyInBaseline => {
                vec!["only the baseline ran it: it was removed, renamed or not reached".to_owned()]
            }
            Finding::OnlyInCurrent => vec!["only the current ran it: nothing to compare with".to_owned()],
            Finding::ExactOnly => Vec::new(),
            Finding::TooFewBlocks(count) => {
                vec![format!("{count} complete blocks, and an interval needs 2")]
            }
        };
        reasons.extend(self.exact.iter().filter_map(Exact::sentence));
        reasons
    }

    /// Order of a table: what needs attention first.
    pub(super) fn rank(&self) -> u8 {
        if self.exact.iter().any(Exact::is_worse) {
            return 1;
        }
        match &self.finding {
            Finding::WrongOutputs(_) => 0,
            Finding::Timed(timed) => match timed.verdict {
                Verdict::Regressed => 1,
                Verdict::Ambiguous => 4,
                Verdict::NotSlower => 6,
                Verdict::Same => 7,
            },
            Finding::Failed(_) => 2,
            Finding::OnlyInBaseline => 3,
            Finding::TooFewBlocks(_) => 4,
            Finding::OnlyInCurrent => 5,
            Finding::ExactOnly => 7,
            Finding::NotRun(_) => 8,
        }
    }
}

/// Why a text is not verdicts that this program can read.
#[derive(Debug, thiserror::Error)]
pub enum VerdictsError {
    /// Not JSON, or not of this shape.
    #[error("not verdicts of `overdrive regress`: {0}")]
    Shape(#[from] serde_json::Error),
    /// Written by another version.
    #[error("gate version {0}, expected {GATE_VERSION}: judge again with this version of Overdrive")]
    Version(u32),
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
        Ok(serde_json::from_str(text)?)
    }

    /// Whether verdicts on times bind: not where the baseline differed from itself.
    pub fn is_advisory(&self) -> bool {
        !self.control.flagged.is_empty()
    }

    /// What the session means for a script: wrong outputs before regressions, those before failures, those before
    /// doubt. A session that compared nothing has not passed.
    pub fn exit(&self) -> Exit {
        let any = |is: &dyn Fn(&Finding) -> bool| self.cases.iter().any(|case| is(&case.finding));
        let verdict =
            |finding: &Finding, wanted| matches!(finding, Finding::Timed(timed) if timed.verdict == wanted);
        let worse = self.cases.iter().any(|case| case.exact.iter().any(Exact::is_worse));
        let compared = any(&|finding| matches!(finding, Finding::Timed(_) | Finding::ExactOnly));
        let broke = |failure: &Failure| failure.kind != crate::outcome::FailureKind::Skipped;
        let undecided = |finding: &Finding| {
            verdict(finding, Verdict::Ambiguous)
                || matches!(finding, Finding::OnlyInBaseline | Finding::TooFewBlocks(_))
        };
        if any(&|finding| matches!(finding, Finding::WrongOutputs(_))) {
            Exit::WrongOutputs
        } else if worse || (!self.is_advisory() && any(&|finding| verdict(finding, Verdict::Regressed))) {
            Exit::Regression
        } else if self.ended_early.as_ref().is_some_and(broke)
            || any(&|finding| matches!(finding, Finding::Failed(_)))
        {
            Exit::Harness
        } else if self.ended_early.is_some() || any(&undecided) {
            Exit::Inconclusive
        } else if !compared {
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
            (0, 0) => "; the control was not run".to_owned(),
            (0, _) => "; the control is clean".to_owned(),
            (count, _) => format!(
                "; ADVISORY ONLY: the baseline differs from itself in {count} {}",
                if count == 1 { "case" } else { "cases" }
            ),
        };
        if let Some(median) = self.typical_minimum_detectable() {
            line +=
                &format!("; a slowdown of {:.1} % is detectable in the median case", 100.0 * (median - 1.0));
        }
        if let Some(failure) = &self.ended_early {
            line += &format!("; ended early: {}", failure.reason);
        }
        line
    }

    fn typical_minimum_detectable(&self) -> Option<f64> {
        let timed = self.cases.iter().filter_map(|case| match &case.finding {
            Finding::Timed(timed) => Some(timed.minimum_detectable),
            _ => None,
        });
        Some(crate::statistics::Sorted::new(&timed.collect::<Vec<_>>())?.median())
    }
}

/// The JSON Schema of [`Verdicts`], as published in `docs/gate.schema.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Verdicts);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}
