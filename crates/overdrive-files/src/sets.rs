//! Sets of files that several processes write into one folder. A set takes the place of the one
//! before at once.
//!
//! A folder has two sets, each a folder of its own. The manifest lists the files of one of them
//! with their checksums, while writers fill the other. Invariant: a kill at any moment leaves the
//! listed set whole. The manifest is replaced by a rename after all files of the new set are there.

use crate::checksum::Checksum;
use crate::contents::Contents;
use crate::manifest::Manifest;
use crate::place::Place;
use crate::{FileError, MANIFEST};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The folders of both sets.
const SETS: [&str; 2] = ["a/", "b/"];

/// Files of a set by path in the folder, with their checksums.
pub type ListedFiles = BTreeMap<String, Checksum>;

impl Contents {
    /// A folder of sets; `name` is its kind in messages.
    pub const fn sets(name: &'static str) -> Self {
        Self {
            name,
            writes: |name| SETS.iter().any(|set| name.starts_with(set)),
            is_ours: |_| false,
        }
    }
}

impl Place {
    /// Clears the set that the manifest does not list, and returns the path of its folder in this
    /// folder, with a `/` behind.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn spare_set(&self) -> Result<&'static str, FileError> {
        let (spare, text) = {
            let mut ledger = self.ledger();
            let manifest = &mut ledger.written;
            let [first, second] = SETS;
            let spare = if has_files(manifest, first) { second } else { first };
            // Listed before they are there, so that a killed writer's files are known as ours.
            manifest.files.extend(SETS.map(|set| (set.to_owned(), None)));
            (spare, manifest.to_json())
        };
        self.write(MANIFEST, text.as_bytes())?;
        let folder = self.target.join(spare);
        cleared(&folder).and_then(|()| fs::create_dir(&folder)).map_err(self.unwritable())?;
        Ok(spare)
    }

    /// Lists these files, which are there, in place of those of the other set, which are removed.
    ///
    /// # Errors
    /// When the system refuses; the set before is listed then.
    pub fn list_set(&self, files: ListedFiles) -> Result<(), FileError> {
        let mut manifest = self.ledger().written.clone();
        manifest.files.retain(|name, _| name.ends_with('/'));
        manifest.files.extend(files.into_iter().map(|(name, sum)| (name, Some(sum))));
        self.write(MANIFEST, manifest.to_json().as_bytes())?;
        // The rename itself is on the disk once its folder is: before the other set goes.
        if let Ok(folder) = File::open(&self.target) {
            folder.sync_all().or(Ok(())).map_err(self.unwritable())?;
        }
        for set in SETS.iter().filter(|set| !has_files(&manifest, set)) {
            cleared(&self.target.join(set)).map_err(self.unwritable())?;
        }
        self.ledger().written = manifest;
        Ok(())
    }
}

/// The files of the whole set in a folder; none if there is none.
///
/// # Errors
/// When the manifest cannot be read or is of other contents.
pub fn listed_set(folder: &Path, contents: Contents) -> Result<ListedFiles, FileError> {
    let Some(manifest) = Manifest::read(folder)? else { return Ok(ListedFiles::new()) };
    if manifest.contents != contents.name {
        let reason = format!("holds {}, not {}", manifest.contents, contents.name);
        return Err(FileError::Unfit { path: folder.to_owned(), option: "", reason });
    }
    Ok(manifest.files.into_iter().filter_map(|(name, sum)| Some((name, sum?))).collect())
}

/// Removes a folder of sets, but for files in it that are not ours.
///
/// # Errors
/// When the system refuses.
pub fn remove_sets(folder: &Path, contents: Contents) -> Result<(), FileError> {
    if Manifest::read(folder)?.is_none_or(|manifest| manifest.contents != contents.name) {
        return Ok(());
    }
    let cannot = || FileError::io(folder, "remove");
    fs::remove_file(folder.join(MANIFEST)).map_err(cannot())?;
    SETS.iter().try_for_each(|set| cleared(&folder.join(set))).map_err(cannot())?;
    // The system refuses this if the folder has other files, as intended.
    let _ = fs::remove_dir(folder);
    Ok(())
}

fn has_files(manifest: &Manifest, set: &str) -> bool {
    manifest.files.keys().any(|name| name.starts_with(set) && name != set)
}

fn cleared(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Existing, PlaceRequest};

    const PARTS: Contents = Contents::sets("parts");

    fn place(path: &Path) -> Result<Place, FileError> {
        let request = PlaceRequest { path, option: "", existing: Existing::Replace, inputs: &[] };
        Place::files(request, PARTS)
    }

    /// Writes a set of one file and does not list it.
    fn written(place: &Place, text: &str) -> ListedFiles {
        let name = format!("{}0", place.spare_set().unwrap());
        let path = place.target.join(&name);
        fs::write(&path, text).unwrap();
        [(name, Checksum::of_file(&path).unwrap())].into()
    }

    #[test]
    fn a_set_is_listed_until_the_next_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sets");
        assert!(listed_set(&path, PARTS).unwrap().is_empty());
        let first = {
            let place = place(&path).unwrap();
            let files = written(&place, "one");
            assert!(listed_set(&path, PARTS).unwrap().is_empty(), "it is not whole yet");
            place.list_set(files.clone()).unwrap();
            files
        };
        assert_eq!(listed_set(&path, PARTS).unwrap(), first);
        // A writer that is killed here leaves files that the next one clears.
        drop(written(&place(&path).unwrap(), "torn"));
        assert_eq!(listed_set(&path, PARTS).unwrap(), first);
        let (name, sum) = first.first_key_value().unwrap();
        assert_eq!(Checksum::of_file(&path.join(name)).unwrap(), *sum);
        let second = {
            let place = place(&path).unwrap();
            let files = written(&place, "two");
            place.list_set(files.clone()).unwrap();
            files
        };
        assert_eq!(listed_set(&path, PARTS).unwrap(), second);
        assert!(!path.join(name).exists(), "the set before is gone");
        fs::write(path.join("mine"), "kept").unwrap();
        remove_sets(&path, PARTS).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_file(path.join("mine")).unwrap();
    }

    #[test]
    fn files_of_the_user_are_not_taken_for_ours() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/mine"), "kept").unwrap();
        let said = place(folder.path()).unwrap_err().to_string();
        assert!(said.contains("did not write: `a/mine`"), "{said}");
        remove_sets(folder.path(), PARTS).unwrap();
        assert!(folder.path().join("a/mine").exists());
    }
}
