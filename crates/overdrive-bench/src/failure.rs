//! Why a case gave no figure: a class, which decides exit code and colour, and one sentence.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a case gave no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct Failure {
    /// The class that decides exit code and colour.
    pub kind: FailureKind,
    /// One sentence for the reader of the report.
    pub reason: String,
}

/// The classes of failure.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// An error or a panic.
    Failed,
    /// The back end or the machine cannot do it; nobody's fault.
    Unsupported,
    /// Host or device memory ran out, or the plan says that it would.
    OutOfMemory,
    /// It ran past the limit of a case.
    Timeout,
    /// It ran and its outputs disagree with the reference: no time is reported.
    Incorrect,
    /// It was not tried, because the run was interrupted or something that it depends on failed.
    Skipped,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "failed",
            Self::Unsupported => "unsupported",
            Self::OutOfMemory => "out of memory",
            Self::Timeout => "timeout",
            Self::Incorrect => "incorrect",
            Self::Skipped => "skipped",
        })
    }
}

impl Failure {
    /// An error or a panic.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, reason: reason.into() }
    }

    /// Something that the back end or the machine cannot do.
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Unsupported, reason: reason.into() }
    }

    /// Memory ran out.
    pub fn out_of_memory(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::OutOfMemory, reason: reason.into() }
    }

    /// The limit of a case was passed.
    pub fn timeout(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Timeout, reason: reason.into() }
    }

    /// The outputs disagree with the reference.
    pub fn incorrect(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Incorrect, reason: reason.into() }
    }

    /// It was not tried.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Skipped, reason: reason.into() }
    }
}
