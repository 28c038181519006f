//! Errors about a file or a place. Each says what was expected, what was found, where, and what to
//! type next.

use std::path::{Path, PathBuf};

/// A file that could not be read, or a place that could not be written to.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused to read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// No regular file: to read a pipe is to wait for its writer, and a device may never end.
    #[error("{}: expected a file, found {found}; {remedy}", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// A description of it.
        found: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// More bytes than such a file ever has.
    #[error("{}: expected at most {most} bytes, found more; name another file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes that are read.
        most: u64,
    },
    /// No memory for the bytes.
    #[error("{}: its {bytes} bytes do not fit in memory; free some, or use a smaller \
             file", path.display())]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Another program made a file shorter while it was read.
    #[error(
        "{}: expected {expected} bytes, as when it was opened, found {found}; another program made \
         it shorter: write the file again, then repeat the command",
        path.display()
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// Its bytes when it was opened.
        expected: u64,
        /// Its bytes now.
        found: u64,
    },
    /// Bytes that are no UTF-8.
    #[error(
        "{}, line {line}: expected UTF-8 text, found other bytes at offset {offset}; convert the \
         file, `iconv -t UTF-8`",
        path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// The first such byte, from 0.
        offset: usize,
    },
    /// A file of ours is not as it was written.
    #[error(
        "{}: expected {expected}, as {} says, found {found}; the file was damaged or changed: \
         write the folder again, or, if you meant the change, delete its entry in that list",
        path.display(), crate::contents::MANIFEST
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Size and checksum in the manifest.
        expected: String,
        /// Those of the file.
        found: String,
    },
    /// A manifest that is none, or of a newer version.
    #[error("{}: expected a list of the files of a folder, found {found}; delete it to use the \
             folder without", path.display())]
    NoManifest {
        /// The manifest.
        path: PathBuf,
        /// The fault.
        found: String,
    },
    /// The system refused to write.
    #[error("cannot write to `{}`: {source}; name another place{}", path.display(), with(option))]
    Unwritable {
        /// The place.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The disk, or a limit on the size of files, has no room for the output.
    #[error(
        "no room for `{}`: the work needs {needed} bytes there, found {found} that may be \
         written; make room, or name \
         another place",
        path.display()
    )]
    NoRoom {
        /// The place.
        path: PathBuf,
        /// Bytes of the output.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The place cannot be used for the output, whatever is in it.
    #[error("cannot write to `{}`: it {reason}; name another \
             place{}", path.display(), with(option))]
    Unfit {
        /// The place.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// A description of it.
        reason: String,
    },
    /// Earlier results, or an input, are in the way.
    #[error("`{}` {what}; --force replaces it, or name another \
             place{}", path.display(), with(option))]
    Exists {
        /// The place.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// A description of what was found.
        what: String,
    },
    /// Files that are not ours are in the way.
    #[error(
        "`{}` holds what Overdrive did not write: {}; move it away, or name another place{}",
        path.display(), listed(files), with(option)
    )]
    Strangers {
        /// The folder.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// Names of the files.
        files: Vec<String>,
    },
    /// Another process writes there.
    #[error("`{}` is being written by process {pid}; wait until it ends, or name another \
             place", path.display())]
    Busy {
        /// The place.
        path: PathBuf,
        /// The other process, as far as it is known.
        pid: String,
    },
    /// The output could not take its place, and is kept next to it.
    #[error("{reason}. The work is kept: it is in `{}`", kept.display())]
    Kept {
        /// Why.
        reason: Box<FileError>,
        /// Its path.
        kept: PathBuf,
    },
}

/// How the user names a place: by an option, or in code without.
fn with(option: &str) -> String {
    if option.is_empty() { String::new() } else { format!(" with {option}") }
}

/// Names that are printed; their number is always said.
const LISTED: usize = 8;

fn listed(files: &[String]) -> String {
    let names: Vec<String> = files.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = files.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

impl FileError {
    /// The system's refusal to do something with a file.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    /// Whether the file is simply not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}
