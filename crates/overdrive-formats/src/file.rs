//! Files: mapped for reading, replaced atomically for writing.

use crate::FormatError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The bytes of a file, mapped into memory: a model larger than memory can be opened.
#[allow(unsafe_code)]
pub(crate) fn map(path: &Path) -> Result<memmap2::Mmap, FormatError> {
    let file = File::open(path).map_err(FormatError::io(path, "open"))?;
    if file.metadata().map_err(FormatError::io(path, "open"))?.is_dir() {
        return Err(FormatError::damaged(path, "path", "a file", "a folder").remedy("name a file inside it"));
    }
    // SAFETY: the map is read-only and we never write to an existing file, only rename over it. Another process
    // that truncates the file meanwhile would stop this one, as with every reader of mapped files.
    unsafe { memmap2::Mmap::map(&file) }.map_err(FormatError::io(path, "map"))
}

/// Writes beside `path` and renames over it when `write` has succeeded, so that nobody sees half a file.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let unfinished = Unfinished(beside(path));
    write(&unfinished.0)?;
    let file = File::open(&unfinished.0).map_err(FormatError::io(path, "write"))?;
    file.sync_all().map_err(FormatError::io(path, "write"))?;
    fs::rename(&unfinished.0, path).map_err(FormatError::io(path, "write"))
}

/// `.name.<process>.part` in the same folder: a rename is atomic only within one file system.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

/// Removes what is left of a failed write.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is nothing to remove, and a failed removal changes nothing for the caller.
        let _ = fs::remove_file(&self.0);
    }
}
