//! Files of one folder as one writer left them.

use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::staging::{beside, is_lost, recover};
use crate::{FileError, read};
use std::path::Path;

/// Reads the manifest again so often when the folder was replaced between two files.
const ATTEMPTS: usize = 4;

/// The bytes of these files, all from one writer. Each is given with the most bytes that it may
/// have. If the folder has a manifest, the bytes match it.
///
/// # Errors
/// When one cannot be read or is not as it was written.
pub fn snapshot(folder: &Path, files: &[(&str, u64)]) -> Result<Vec<Vec<u8>>, FileError> {
    recovered(folder);
    let mut attempt = 1;
    loop {
        let manifest = Manifest::read(folder)?;
        let one = |(name, most): &(&str, u64)| {
            let bytes = read(&folder.join(name), *most)?;
            manifest.as_ref().map_or(Ok(()), |manifest| manifest.check(folder, name, &bytes))?;
            Ok(bytes)
        };
        let found = files.iter().map(one).collect::<Result<Vec<_>, FileError>>();
        // Another process may have replaced the folder between two of them.
        if attempt == ATTEMPTS || Manifest::read(folder)? == manifest {
            return found;
        }
        attempt += 1;
    }
}

/// Whether a folder has a manifest that calls it so.
pub fn is_folder_of(contents: &str, folder: &Path) -> bool {
    Manifest::read(folder)
        .is_ok_and(|found| found.is_some_and(|manifest| manifest.contents == contents))
}

/// Recovers a folder that a writer, killed between two renames, left under another name.
pub fn recovered(folder: &Path) {
    // A folder that is still being written is not lost. One that cannot be recovered is reported
    // when it is opened.
    if is_lost(folder)
        && let Ok(_lock) = Lock::take(&beside(folder, "lock"))
    {
        let _ = recover(folder);
    }
}
