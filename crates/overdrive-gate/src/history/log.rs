//! A history on disk: lines of JSON, only ever appended, so that two branches merge by
//! concatenation and nothing that was once recorded is rewritten.

use overdrive_files::FileError;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::entry::{HISTORY_VERSION, HistoryEntry};

/// Why a history could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The history cannot be read.
    #[error("the history cannot be read: {0}")]
    Unreadable(#[from] FileError),
    /// The file system's answer.
    #[error("cannot append to the history `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        reason: io::Error,
    },
    /// A line that is no entry.
    #[error(
        "`{}`, line {line}: {reason}; expected one entry of version {HISTORY_VERSION} a line. If \
         the line was cut short, remove it: \
         results can be added again", path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
}

/// Every entry, in the order of the file.
///
/// # Errors
/// When the file cannot be read, or one of its lines is no entry. A history that silently lost a
/// line would show a change that never was.
pub fn read(path: &Path) -> Result<Vec<HistoryEntry>, HistoryError> {
    let text = overdrive_files::read_text(path, overdrive_files::RESULTS)?;
    let entry = |(index, line): (usize, &str)| {
        let refuse =
            |reason: String| HistoryError::Line { path: path.to_owned(), line: index + 1, reason };
        let entry: HistoryEntry =
            serde_json::from_str(line).map_err(|error| refuse(error.to_string()))?;
        if entry.history_version != HISTORY_VERSION {
            return Err(refuse(format!("version {}", entry.history_version)));
        }
        if !entry.value.is_finite() || entry.value < 0.0 {
            return Err(refuse(format!("the value {} is no measurement", entry.value)));
        }
        Ok(entry)
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(entry).collect()
}

/// Appends those of `entries` that are not there yet, in one write, and says how many they were. A
/// file that does not exist is made.
///
/// # Errors
/// If the existing file is damaged, or cannot be written.
pub fn append(path: &Path, entries: &[HistoryEntry]) -> Result<usize, HistoryError> {
    let known = if path.exists() { read(path)? } else { Vec::new() };
    let new: Vec<&HistoryEntry> = entries
        .iter()
        .filter(|entry| !known.iter().any(|known| known.is_same_figure(entry)))
        .collect();
    let mut text: String = new
        .iter()
        .map(|entry| serde_json::to_string(entry).expect("an entry is plain data") + "\n")
        .collect();
    let failed = |reason| HistoryError::File { path: path.to_owned(), reason };
    // An editor may have left the last line without its end.
    let end = overdrive_files::read(path, overdrive_files::RESULTS)
        .ok()
        .and_then(|bytes| bytes.last().copied());
    if end.is_some_and(|last| last != b'\n') {
        text.insert(0, '\n');
    }
    if !new.is_empty() {
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(new.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::testing::{record, results};
    use std::fs;

    #[test]
    fn lines_are_appended_once_and_damage_is_named() {
        let path =
            std::env::temp_dir().join(format!("overdrive-history-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut found = results();
        found.records = vec![record("compile", &[1000; 6]), record("eager", &[3000; 6])];
        let first = HistoryEntry::of(&found);
        assert_eq!(append(&path, &first).unwrap(), 2);
        assert_eq!(append(&path, &first).unwrap(), 0, "the same run twice is one run");
        found.started_unix_s += 60;
        assert_eq!(append(&path, &HistoryEntry::of(&found)).unwrap(), 2);
        let whole = read(&path).unwrap();
        assert_eq!((whole.len(), &whole[..2]), (4, &first[..]));

        let text = fs::read_to_string(&path).unwrap();
        for (damaged, word) in [
            (text[..text.len() - 40].to_owned(), "line 4"),
            (
                text.replacen("\"history_version\":1", "\"history_version\":7", 1),
                "line 1: version 7",
            ),
            (text.replacen("1000.0", "-1.0", 1), "-1 is no measurement"),
        ] {
            fs::write(&path, &damaged).unwrap();
            let said = read(&path).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
            append(&path, &first).unwrap_err();
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                damaged,
                "a damaged file is left as it is"
            );
        }
        fs::write(&path, text.trim_end()).unwrap();
        found.started_unix_s += 60;
        append(&path, &HistoryEntry::of(&found)).unwrap();
        assert_eq!(read(&path).unwrap().len(), 6);
        fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("cannot be read"));
    }
}
