//! The verdicts of a session of the regression gate, as data. They are on each case and on the
//! machine by its control, with the grounds of both and the exit code.
//!
//! Results carry verdicts into a report. The crate `overdrive-gate` derives them from the evidence.

mod block;
mod evidence;
mod exact;
mod figure;
mod finding;
mod observation;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use block::{Block, Side};
pub use evidence::Evidence;
pub use exact::{Exact, ExactChange, UNCLEAR};
pub use figure::{Estimate, Figure, Verdict};
pub use finding::{CaseVerdict, Compared, Control, Finding, Flagged};
pub use observation::{MEAN, MEDIAN, Observations, Observed, P95, P99};

use crate::environment::Environment;
use crate::exit::Exit;
use crate::failure::{Failure, FailureKind};
use crate::statistics::Sorted;

/// Version of the verdicts' schema. Raised whenever a field changes its meaning or disappears.
pub const GATE_VERSION: u32 = 2;

/// Everything that a session of the gate reports. The verdicts on cases and on the control follow
/// from the evidence alone.
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
    /// The side to compare with.
    pub baseline: Program,
    /// The judged side.
    pub current: Program,
    /// The machine and its settings.
    pub environment: Environment,
    /// The baseline against itself.
    pub control: Control,
    /// Every case that either side named, worst first.
    pub cases: Vec<CaseVerdict>,
    /// The data that all of it was computed from: every figure of every process, in the order in
    /// which they ran.
    pub evidence: Evidence,
    /// Caveats, for readers to know before they believe it.
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
    /// The command that is run in each process.
    pub command: String,
}

impl Verdicts {
    /// Whether a text means to be verdicts, whatever else is wrong with it.
    pub fn claims(text: &str) -> bool {
        text.trim_start()
            .strip_prefix('{')
            .is_some_and(|rest| rest.trim_start().starts_with("\"gate_version\""))
    }

    /// Whether verdicts on times bind: not where the baseline differed from itself.
    pub fn is_advisory(&self) -> bool {
        !self.control.flagged.is_empty()
    }

    /// The exit code of the session. Wrong outputs take precedence over regressions, regressions
    /// over failures and missing cases, and these over doubt. A session that compared nothing has
    /// not passed.
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
        Some(Sorted::new(&timed.collect::<Vec<_>>())?.median())
    }
}

/// The JSON Schema of [`Verdicts`], as published in `docs/gate.schema.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Verdicts);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}
