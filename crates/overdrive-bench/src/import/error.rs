//! Why a file is not results.

use std::path::PathBuf;

use overdrive_files::FileError;

use super::format::Format;
use crate::json::JsonError;

/// A file that cannot be imported. Nothing was taken from it.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened, or is larger than any results that make sense.
    #[error("{0}; expected results, or the folder of a report")]
    File(#[from] FileError),
    /// A gzip file, as PyTorch writes them on request.
    #[error("`{}` is compressed: unpack it with `gunzip` first", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// Not UTF-8.
    #[error("`{}` is not text, but results are JSON", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// JSON of an unknown kind, or no JSON.
    #[error(
        "`{}` is no results file that Overdrive knows: {found}; expected Overdrive's \
         results.json, a PyTorch profiler trace, nvbench or criterion JSON, or a report of the \
         older suite",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Its content.
        found: String,
    },
    /// Damaged, in a known format.
    #[error("`{}` looks like {format}, but cannot be read as such: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The recognised format.
        format: Format,
        /// The fault, with line and column if there is one.
        reason: String,
    },
    /// Without a figure, in a known format.
    #[error("`{}` is {format} without a figure: {missing}", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
        /// Its format.
        format: Format,
        /// The figures that were looked for.
        missing: &'static str,
    },
    /// A page, refused.
    #[error("`{}` is not a page that `overdrive report` wrote: {reason}", path.display())]
    Page {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        reason: JsonError,
    },
    /// Our own format, refused.
    #[error("`{}`: {reason}", path.display())]
    Ours {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        reason: JsonError,
    },
}
