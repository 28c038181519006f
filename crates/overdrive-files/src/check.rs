//! Whether the files of a folder are as its manifest says, while somebody reads them.
//!
//! Checksums are computed on a thread of their own beside the reader, from the same pages of the
//! system's cache. Invariant: if the check fails, the caller gets its error. The reader may have
//! met the same damage in other words.

use crate::checksum::Checksum;
use crate::contents::{Contents, MANIFEST};
use crate::manifest::Manifest;
use crate::{FileError, open};
use std::fs;
use std::io;
use std::path::{Component, Path};
use std::thread;

/// Ending of texts for people, which change no result and may be changed.
const FOR_PEOPLE: &str = ".md";

/// A folder whose files are to be compared with its manifest.
#[derive(Copy, Clone, Debug)]
pub struct FolderCheck<'a> {
    /// The folder. One without a manifest is not checked, nor is a file.
    pub folder: &'a Path,
    /// The kind of folder. A manifest of another kind lists other files.
    pub contents: Contents,
    /// This reader, from 0, and the number of them. Each computes its part of the checksums, and
    /// compares the sizes of all files.
    pub part: [usize; 2],
}

impl FolderCheck<'_> {
    /// The result of `read`, beside which the files are checked.
    ///
    /// # Errors
    /// When a listed file is missing or is not as it was written, whatever `read` says.
    pub fn beside<T>(self, read: impl FnOnce() -> T) -> Result<T, FileError> {
        let found = if self.folder.is_dir() { Manifest::read(self.folder)? } else { None };
        let Some(manifest) = found.filter(|found| found.contents == self.contents.name) else {
            return Ok(read());
        };
        let files: Vec<(&str, &Checksum)> = manifest
            .files
            .iter()
            .filter_map(|(name, sum)| Some((name.as_str(), sum.as_ref()?)))
            .filter(|(name, _)| !name.ends_with(FOR_PEOPLE))
            .collect();
        self.check_sizes(&files)?;
        let [own, parts] = self.part;
        let check = || -> Result<(), FileError> {
            files.iter().skip(own).step_by(parts).try_for_each(|&(name, expected)| {
                let path = self.folder.join(name);
                let found = Checksum::of_file(&path)?;
                if found == *expected { Ok(()) } else { Err(changed(&path, expected, found)) }
            })
        };
        thread::scope(|scope| {
            let beside = thread::Builder::new().spawn_scoped(scope, check);
            let read = read();
            let checked = match beside {
                Ok(beside) => beside.join().expect("a check does not panic"),
                // The system has no thread to spare.
                Err(_) => check(),
            };
            checked.map(|()| read)
        })
    }

    /// Errs where a file is missing, of another size, or outside of the folder.
    fn check_sizes(&self, files: &[(&str, &Checksum)]) -> Result<(), FileError> {
        for &(name, expected) in files {
            let is_inside = |part| matches!(part, Component::Normal(_));
            if !Path::new(name).components().all(is_inside) {
                let path = self.folder.join(MANIFEST);
                let found = format!("`{name}`, which is not in it");
                return Err(FileError::NoManifest { path, found });
            }
            let path = self.folder.join(name);
            match fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(changed(&path, expected, "no such file"));
                }
                Err(error) => return Err(FileError::io(&path, "read")(error)),
                Ok(found) if found.is_file() && found.len() != expected.bytes() => {
                    return Err(changed(&path, expected, format!("{} bytes", found.len())));
                }
                // A pipe or a device is refused with an error that says what it is.
                Ok(_) => drop(open(&path)?),
            }
        }
        Ok(())
    }
}

fn changed(path: &Path, expected: &Checksum, found: impl ToString) -> FileError {
    let (path, expected) = (path.to_owned(), expected.to_string());
    FileError::Changed { path, expected, found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Existing, Place, PlaceRequest};

    const PARTS: Contents = Contents { name: "parts", writes: |_| false, is_ours: |_| false };

    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("made");
        let request = PlaceRequest { path, option: "", existing: Existing::Keep, inputs: &[] };
        let place = Place::folder(request, PARTS).unwrap();
        let fill = |at: &Path| -> Result<(), FileError> {
            fs::create_dir_all(at.join("inner")).unwrap();
            for name in ["a.bin", "b.bin", "README.md", "inner/c.json"] {
                fs::write(at.join(name), name.repeat(1000)).unwrap();
            }
            Ok(())
        };
        place.fill(fill).unwrap();
        folder
    }

    fn check(folder: &Path, part: [usize; 2]) -> Result<u32, FileError> {
        let folder = &folder.join("made");
        FolderCheck { folder, contents: PARTS, part }.beside(|| 7)
    }

    #[test]
    fn a_file_that_is_changed_cut_or_missing_is_told_and_others_are_not_looked_at() {
        let folder = written();
        let at = |name: &str| folder.path().join("made").join(name);
        assert_eq!(check(folder.path(), [0, 1]).unwrap(), 7);
        // Texts for people, and files that are not listed.
        fs::write(at("README.md"), "of the user").unwrap();
        fs::write(at("mine"), "of the user").unwrap();
        assert_eq!(check(folder.path(), [0, 1]).unwrap(), 7);
        for name in ["a.bin", "inner/c.json"] {
            let before = fs::read(at(name)).unwrap();
            let mut flipped = before.clone();
            flipped[777] ^= 1;
            fs::write(at(name), flipped).unwrap();
            let said = check(folder.path(), [0, 1]).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains("of checksum"), "{said}");
            fs::write(at(name), &before[1..]).unwrap();
            let said = check(folder.path(), [0, 1]).unwrap_err().to_string();
            let size = format!("found {} bytes;", before.len() - 1);
            assert!(said.contains(name) && said.contains(&size), "{said}");
            fs::remove_file(at(name)).unwrap();
            let said = check(folder.path(), [0, 1]).unwrap_err().to_string();
            assert!(said.contains("found no such file; "), "{said}");
            assert!(said.contains("delete its entry"), "{said}");
            fs::write(at(name), before).unwrap();
        }
        // A list of another kind is of other files.
        fs::write(at("b.bin"), "torn").unwrap();
        let made = &folder.path().join("made");
        let other = Contents { name: "another kind", ..PARTS };
        let other = FolderCheck { folder: made, contents: other, part: [0, 1] };
        assert!(other.beside(|| ()).is_ok());
        fs::remove_file(at(MANIFEST)).unwrap();
        assert_eq!(check(folder.path(), [0, 1]).unwrap(), 7);
    }

    #[test]
    fn several_readers_compute_each_checksum_once() {
        let folder = written();
        for name in ["a.bin", "b.bin", "inner/c.json"] {
            let path = folder.path().join("made").join(name);
            let before = fs::read(&path).unwrap();
            fs::write(&path, vec![0; before.len()]).unwrap();
            let seen = (0..2).filter(|&own| check(folder.path(), [own, 2]).is_err()).count();
            assert_eq!(seen, 1, "{name}");
            fs::write(&path, before).unwrap();
        }
    }

    #[test]
    fn a_list_does_not_lead_out_of_its_folder() {
        let folder = written();
        let list = folder.path().join("made").join(MANIFEST);
        let text = fs::read_to_string(&list).unwrap();
        fs::write(&list, text.replace("a.bin", "../a.bin")).unwrap();
        let said = check(folder.path(), [0, 1]).unwrap_err().to_string();
        assert!(said.contains("found `../a.bin`, which is not in it"), "{said}");
    }
}
