//! How a case ended. Only [`Outcome::Ok`] holds numbers, so a case that failed cannot be drawn,
//! averaged or compared as if it had taken no time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::measurement::Measurement;

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
