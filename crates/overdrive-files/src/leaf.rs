//! The entries of a folder, file by file.

use crate::FileError;
use std::fs;
use std::path::Path;

/// Folders in folders beyond this are none of ours.
const DEPTH: usize = 6;

/// Paths of all files below `folder`, with `/`, in order. A folder that `enter` does not know is
/// listed by its name with a `/` behind. We write no links: one is named as such, so that it is
/// never taken for a file of ours.
pub(crate) fn leaves(
    folder: &Path,
    enter: &dyn Fn(&str) -> bool,
) -> Result<Vec<String>, FileError> {
    let mut found = Vec::new();
    collect(folder, "", (enter, DEPTH), &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(
    folder: &Path,
    prefix: &str,
    (enter, depth): (&dyn Fn(&str) -> bool, usize),
    found: &mut Vec<String>,
) -> Result<(), FileError> {
    let cannot = || FileError::io(folder, "read");
    for entry in fs::read_dir(folder).map_err(cannot())? {
        let entry = entry.map_err(cannot())?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(cannot())?;
        let below = format!("{name}/");
        match kind.is_dir() {
            _ if kind.is_symlink() => found.push(format!("{name} (a link)")),
            true if depth > 0 && enter(&below) => {
                collect(&entry.path(), &below, (enter, depth - 1), found)?;
            }
            true => found.push(below),
            false => found.push(name),
        }
    }
    Ok(())
}
