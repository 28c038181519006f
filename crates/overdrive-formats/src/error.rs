//! What can be wrong with a file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// The bytes, or the tensors to be written, are not what the format allows.
    #[error("{}: {place}: expected {expected}, found {found}; {remedy}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Where in it: a tensor's name or a part of the format.
        place: String,
        /// What the format asks for.
        expected: String,
        /// What is there.
        found: String,
        /// How to mend it.
        remedy: String,
    },
}

/// The usual remedy for a file that does not hold together.
pub(crate) const DAMAGED: &str = "the file is damaged or was cut short; fetch or write it again";

impl FormatError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn damaged(path: &Path, place: &str, expected: impl Display, found: impl Display) -> Self {
        let (expected, found) = (expected.to_string(), found.to_string());
        Self::Invalid {
            path: path.to_owned(),
            place: place.to_owned(),
            expected,
            found,
            remedy: DAMAGED.into(),
        }
    }

    pub(crate) fn remedy(mut self, better: &str) -> Self {
        if let Self::Invalid { remedy, .. } = &mut self {
            *remedy = better.to_owned();
        }
        self
    }
}
