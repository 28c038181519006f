//! How a case ended. Only [`Outcome::Ok`] holds numbers, so a case that failed cannot be drawn,
//! averaged or compared as if it had taken no time.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::Measurement;

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran, its outputs were not found wrong, and this was measured.
    Ok(Box<Measurement>),
    /// It gave no figure, and this is why.
    Failure(Failure),
}

impl Outcome {
    /// The measurement, if there is one.
    pub fn measurement(&self) -> Option<&Measurement> {
        match self {
            Self::Ok(measurement) => Some(measurement),
            Self::Failure(_) => None,
        }
    }

    /// The measurement, to be completed by whoever knows more (work, memory, overheads).
    pub fn measurement_mut(&mut self) -> Option<&mut Measurement> {
        match self {
            Self::Ok(measurement) => Some(measurement),
            Self::Failure(_) => None,
        }
    }

    /// The failure, if it is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Ok(_) => None,
            Self::Failure(failure) => Some(failure),
        }
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Result<Measurement, Failure>> for Outcome {
    fn from(result: Result<Measurement, Failure>) -> Self {
        match result {
            Ok(measurement) => Self::Ok(Box::new(measurement)),
            Err(failure) => Self::Failure(failure),
        }
    }
}

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
    /// It was not tried: a stop was asked for, or what it depends on failed.
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
