//! Errors about a file.

use overdrive_files::FileError;
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
        /// The attempted action.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// The file cannot be opened, or its place not be written to.
    #[error(transparent)]
    File(#[from] FileError),
    /// The bytes, or the tensors to be written, are not what the format allows.
    #[error("{}: {place}: expected {expected}, found {found}; {remedy}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The place in it: a tensor's name or a part of the format.
        place: String,
        /// A description of what the format expects.
        expected: String,
        /// A description of what was found.
        found: String,
        /// The remedy.
        remedy: String,
    },
    /// A model uses ops that have no importer.
    #[error("{}: {} lacking here: {}; rewrite these nodes with other ops, or run the model with \
             another engine", path.display(), counted(ops.len(), "op"), listed(ops))]
    Lacking {
        /// The file.
        path: PathBuf,
        /// Every such op, with the names of its nodes.
        ops: Vec<(String, Vec<String>)>,
    },
    /// A graph has parts that the format has no words for.
    #[error(
        "{format} cannot express {}; run these parts with one of our own back ends, or rewrite \
         them with other ops",
        reasons(parts)
    )]
    Inexpressible {
        /// The format.
        format: &'static str,
        /// Every such part, and why.
        parts: Vec<(String, String)>,
    },
    /// A model has values that decide shapes and are known only when it runs.
    #[error("{}: {place}: `{value}` must be known before the model runs, \
             {}", path.display(), decided_by(inputs))]
    Undecided {
        /// The file.
        path: PathBuf,
        /// The node.
        place: String,
        /// The value that it asks for.
        value: String,
        /// The inputs that decide the value; none where it is drawn or state.
        inputs: Vec<String>,
    },
}

/// Nodes that are printed per op; their number is always said.
const LISTED: usize = 8;

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what} is") } else { format!("{n} {what}s are") }
}

fn listed(ops: &[(String, Vec<String>)]) -> String {
    let one = |(op, nodes): &(String, Vec<String>)| {
        let more = if nodes.len() > LISTED {
            format!(" and {} more", nodes.len() - LISTED)
        } else {
            String::new()
        };
        format!("{op} (nodes {}{more})", nodes[..nodes.len().min(LISTED)].join(", "))
    };
    ops.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn reasons(parts: &[(String, String)]) -> String {
    parts.iter().map(|(part, why)| format!("{part}: {why}")).collect::<Vec<_>>().join("; ")
}

fn decided_by(inputs: &[String]) -> String {
    match inputs {
        [] => "and nothing that could be bound decides it".to_owned(),
        inputs => format!("and these inputs decide it: {}; bind their values", inputs.join(", ")),
    }
}

/// The usual remedy for a file that does not hold together.
pub(crate) const DAMAGED: &str = "the file is damaged or was cut short; fetch or write it again";

impl FormatError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn damaged(
        path: &Path,
        place: &str,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        let (expected, found) = (expected.to_string(), found.to_string());
        Self::Invalid {
            path: path.to_owned(),
            place: place.to_owned(),
            expected,
            found,
            remedy: DAMAGED.into(),
        }
    }

    /// The same with another way to mend it.
    #[must_use]
    pub fn remedy(mut self, better: &str) -> Self {
        if let Self::Invalid { remedy, .. } = &mut self {
            *remedy = better.to_owned();
        }
        self
    }
}
