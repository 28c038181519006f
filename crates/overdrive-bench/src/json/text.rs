//! Results as JSON and back, unchanged.

use serde::Deserialize;

use crate::integrity::{Inconsistency, check};
use crate::measurement::Measurement;
use crate::outcome::Outcome;
use crate::results::{OLDEST_VERSION, Results, SCHEMA_VERSION};

/// Why a text is not results.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Not JSON, or not of this shape.
    #[error("not Overdrive results: {0}")]
    Shape(#[from] serde_json::Error),
    /// JSON of this shape that contradicts itself.
    #[error("{0}")]
    Content(#[from] Inconsistency),
}

/// One line of JSON.
pub fn to_json(results: &Results) -> String {
    let mut text = serde_json::to_string(results)
        .expect("results are maps with text keys, which JSON can hold");
    text.push('\n');
    text
}

/// Reads results, and refuses those of an unknown version and those that contradict themselves.
/// Statuses of an older version are derived again by the rules of this one.
///
/// # Errors
/// The fault, with line and column if there is one.
pub fn from_json(text: &str) -> Result<Results, JsonError> {
    /// Other versions may differ in everything else.
    #[derive(Deserialize)]
    struct Versioned {
        schema_version: u32,
    }
    let Versioned { schema_version } = serde_json::from_str(text)?;
    if !(OLDEST_VERSION..=SCHEMA_VERSION).contains(&schema_version) {
        return Err(Inconsistency::Version { found: schema_version }.into());
    }
    let mut results: Results = serde_json::from_str(text)?;
    if schema_version < SCHEMA_VERSION {
        let outcomes = results.records.iter_mut().map(|record| &mut record.outcome);
        outcomes.filter_map(Outcome::measurement_mut).for_each(Measurement::judge_again);
    }
    check(&results)?;
    Ok(results)
}

#[cfg(test)]
mod tests;
