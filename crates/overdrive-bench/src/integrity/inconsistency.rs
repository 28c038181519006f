//! Why a results file is refused.

use crate::results::{OLDEST_VERSION, SCHEMA_VERSION};

/// Said where labels or a summary do not follow from samples.
pub(super) const SUMMARY: &str = "its summary or its labels do not follow from its samples";

/// A contradiction in a file, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistency {
    /// Written by another version.
    #[error(
        "schema version {found}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}: rerun with this \
         version of Overdrive, or read it with the one that wrote it"
    )]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Two records of one case.
    #[error("two records of the case `{case}`: a case is measured once in a run")]
    Duplicate {
        /// The case's id.
        case: String,
    },
    /// Two numbers of the file that cannot both be.
    #[error(
        "`{case}` contradicts itself: {why}. The file was edited or damaged: run the case again"
    )]
    Contradiction {
        /// The case's id, or what else was timed.
        case: String,
        /// The two contradicting statements.
        why: String,
    },
    /// A record or ladder names a case that is not there.
    #[error("`{from}` refers to `{case}`, of which there is no record")]
    Missing {
        /// The record that refers to it.
        from: String,
        /// The id referred to.
        case: String,
    },
}
