//! Writes a file whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that could not be written. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`: {reason}; choose a folder that exists and that you may write to", path.display())]
pub struct WriteError {
    /// The file that was asked for.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub reason: io::Error,
}

/// Writes `content` beside `path` and renames it there, so that a reader sees the old file or the new one, and
/// a stopped run leaves no half of either.
///
/// # Errors
/// When the folder does not exist, is not writable or is full.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), WriteError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = write_synced(&draft, content).and_then(|()| fs::rename(&draft, path));
    written.map_err(|reason| {
        // The draft may not exist; the error that matters is the first.
        let _ = fs::remove_file(&draft);
        WriteError { path: path.to_owned(), reason }
    })
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_failure_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("overdrive-write-{}", std::process::id()));
        fs::create_dir_all(folder.join("occupied")).unwrap();
        let path = folder.join("results.json");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let onto_a_folder = write_atomically(&folder.join("occupied"), b"x").unwrap_err();
        assert!(onto_a_folder.to_string().contains("occupied"), "{onto_a_folder}");
        let into_nowhere = write_atomically(&folder.join("absent/results.json"), b"x").unwrap_err();
        assert!(into_nowhere.to_string().contains("absent"), "{into_nowhere}");
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, ["occupied", "results.json"]);
    }
}
