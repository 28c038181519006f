//! Files and folders: mapped for reading, replaced whole for writing.

use crate::FormatError;
use bytes::Bytes;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The bytes of a file, mapped into memory: a model larger than memory can be opened.
#[allow(unsafe_code)]
pub(crate) fn map(path: &Path) -> Result<memmap2::Mmap, FormatError> {
    // Asked before it is opened: to open a pipe is to wait for who writes to it.
    let kind = fs::metadata(path).map_err(FormatError::io(path, "open"))?.file_type();
    if !kind.is_file() {
        let (found, remedy) = match kind.is_dir() {
            true => ("a folder", "name a file inside it"),
            false => ("a pipe or a device", "write its bytes to a file first"),
        };
        return Err(FormatError::damaged(path, "path", "a file", found).remedy(remedy));
    }
    let file = File::open(path).map_err(FormatError::io(path, "open"))?;
    // SAFETY: the map is read-only and we never write to an existing file, only rename over it. Another process
    // that truncates the file meanwhile would stop this one, as with every reader of mapped files.
    unsafe { memmap2::Mmap::map(&file) }.map_err(FormatError::io(path, "map"))
}

/// The bytes of a file, mapped, for tensors that share them.
pub(crate) fn bytes(path: &Path) -> Result<Bytes, FormatError> {
    map(path).map(Bytes::from_owner)
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

/// The same for a folder: `write` fills a new one, which then takes the place of `path`. What is there already is
/// replaced only where it is empty or `is_ours`, so that a slip of the pen deletes nothing.
pub(crate) fn replace_folder(
    path: &Path,
    is_ours: impl FnOnce(&Path) -> bool,
    write: impl FnOnce(&Path) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let io = |action| FormatError::io(path, action);
    let there = match fs::read_dir(path) {
        Ok(mut entries) => {
            if entries.next().is_some() && !is_ours(path) {
                let error =
                    FormatError::damaged(path, "folder", "no folder, an empty one or a model", "other files");
                return Err(error.remedy("name another folder"));
            }
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(io("read")(error)),
    };
    let unfinished = Unfinished(beside(path));
    fs::create_dir_all(&unfinished.0).map_err(io("create"))?;
    write(&unfinished.0)?;
    // A folder cannot be renamed over one that has files: the old one steps aside first.
    let old = beside(path).with_extension("old");
    if there {
        fs::rename(path, &old).map_err(io("replace"))?;
    }
    if let Err(error) = fs::rename(&unfinished.0, path) {
        // The old one goes back to its place; if that fails too, it still is beside it under the other name.
        let _ = fs::rename(&old, path);
        return Err(io("write")(error));
    }
    if there { fs::remove_dir_all(&old).map_err(io("remove the old version of")) } else { Ok(()) }
}

/// Removes what is left of a failed write.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is nothing to remove, and a failed removal changes nothing for the caller.
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}
