//! Results as JSON and back, unchanged.

use serde::Deserialize;

use crate::results::{Inconsistency, Results};

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
    let mut text =
        serde_json::to_string(results).expect("results are maps with text keys, which JSON can hold");
    text.push('\n');
    text
}

/// Reads results, and refuses those of another version, and those whose summaries do not follow from their
/// samples.
///
/// # Errors
/// What is wrong, with line and column where there is one.
pub fn from_json(text: &str) -> Result<Results, JsonError> {
    /// Other versions may differ in everything else.
    #[derive(Deserialize)]
    struct Versioned {
        schema_version: u32,
    }
    let Versioned { schema_version } = serde_json::from_str(text)?;
    if schema_version != crate::results::SCHEMA_VERSION {
        return Err(Inconsistency::Version { found: schema_version }.into());
    }
    let results: Results = serde_json::from_str(text)?;
    results.check()?;
    Ok(results)
}

#[cfg(test)]
mod tests;
