//! `Rule` and its findings.

use std::fmt;

use super::tree::Tree;

/// A rule of STYLE.md, where it stands under the same name with its reason.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) check: fn(&Tree) -> Vec<Finding>,
}

/// One place where a rule is broken and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) path: String,
    /// From 1; absent where the whole file is meant.
    pub(super) line: Option<usize>,
    pub(super) message: String,
}

impl Finding {
    /// About the whole file.
    pub(super) fn file(path: &str, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: None, message: message.into() }
    }

    /// About one line, counted from 1.
    pub(super) fn line(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: Some(line), message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}
