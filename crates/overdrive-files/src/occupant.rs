//! Existing files at a place, and whether they may be replaced.

use crate::contents::{Contents, PlaceKind};
use crate::leaf::leaves;
use crate::manifest::Manifest;
use crate::place::{Existing, Place};
use crate::{FileError, MANIFEST};
use std::fs;

impl Place {
    /// Errs unless the output may replace what is at its place.
    pub(crate) fn check_occupant(&self) -> Result<(), FileError> {
        let Ok(there) = fs::metadata(&self.target) else { return Ok(()) };
        match self.kind {
            PlaceKind::File if there.is_file() => self.exists("exists"),
            PlaceKind::File if there.is_dir() => {
                Err(self.unfit("is a folder, and a file is to be written"))
            }
            PlaceKind::File => Err(self.unfit("is a pipe or a device")),
            PlaceKind::Folder(_) | PlaceKind::Files(_) if !there.is_dir() => {
                Err(self.unfit("is a file, and a folder is to be written"))
            }
            PlaceKind::Folder(contents) => self.check_folder(contents),
            PlaceKind::Files(contents) => self.check_files(contents),
        }
    }

    /// A folder is replaced as a whole, so that everything in it must be ours.
    fn check_folder(&self, contents: Contents) -> Result<(), FileError> {
        if is_mount_point(&self.target) {
            return Err(
                self.unfit("is a mount point, which cannot be replaced: name a folder in it")
            );
        }
        let manifest = self.manifest_of(contents)?;
        let known = |name: &str| match &manifest {
            Some(manifest) => name == MANIFEST || manifest.has(name),
            None => (contents.writes)(name),
        };
        let enter = |below: &str| match &manifest {
            Some(manifest) => manifest.files.keys().any(|name| name.starts_with(below)),
            None => (contents.writes)(below),
        };
        let there = leaves(&self.target, &enter)?;
        let ours = manifest.is_some() || (contents.is_ours)(&self.target);
        self.refuse(there.iter().filter(|name| !ours || !known(name)))?;
        if there.is_empty() { Ok(()) } else { self.exists(&format!("holds {}", contents.name)) }
    }

    /// For a folder that is written file by file: checks what exists under the names of those
    /// files.
    fn check_files(&self, contents: Contents) -> Result<(), FileError> {
        let manifest = self.manifest_of(contents)?;
        let there = leaves(&self.target, &contents.writes)?;
        let in_the_way: Vec<&String> =
            there.iter().filter(|name| (contents.writes)(name)).collect();
        let ours = |name: &str| match &manifest {
            Some(manifest) => manifest.has(name),
            None => (contents.is_ours)(&self.target),
        };
        self.refuse(in_the_way.iter().copied().filter(|name| !ours(name)))?;
        match in_the_way.as_slice() {
            [] => Ok(()),
            [first, ..] => self.exists(&format!("holds {} (`{first}`)", contents.name)),
        }
    }

    fn manifest_of(&self, contents: Contents) -> Result<Option<Manifest>, FileError> {
        let manifest = Manifest::read(&self.target)?;
        match manifest.as_ref().filter(|manifest| manifest.contents != contents.name) {
            Some(other) => {
                Err(self.unfit(&format!("holds {}, not {}", other.contents, contents.name)))
            }
            None => Ok(manifest),
        }
    }

    fn refuse<'n>(&self, strangers: impl Iterator<Item = &'n String>) -> Result<(), FileError> {
        let files: Vec<String> = strangers.cloned().collect();
        if files.is_empty() {
            return Ok(());
        }
        Err(FileError::Strangers { path: self.shown.clone(), option: self.option, files })
    }

    fn unfit(&self, reason: &str) -> FileError {
        FileError::Unfit {
            path: self.shown.clone(),
            option: self.option,
            reason: reason.to_owned(),
        }
    }

    /// Something that is ours is there.
    fn exists(&self, what: &str) -> Result<(), FileError> {
        if self.existing == Existing::Replace {
            return Ok(());
        }
        let is_input = self.inputs.iter().any(|input| is_same(input, &self.target));
        let what = if is_input { "is an input of this command" } else { what };
        Err(FileError::Exists {
            path: self.shown.clone(),
            option: self.option,
            what: what.to_owned(),
        })
    }
}

/// Whether two names mean one file, or the second a folder around the first.
fn is_same(input: &std::path::Path, target: &std::path::Path) -> bool {
    input.starts_with(target) || is_same_node(input, target)
}

#[cfg(unix)]
fn is_same_node(a: &std::path::Path, b: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    id(a).is_ok_and(|a| id(b).is_ok_and(|b| a == b))
}

#[cfg(not(unix))]
fn is_same_node(_a: &std::path::Path, _b: &std::path::Path) -> bool {
    false
}

#[cfg(unix)]
fn is_mount_point(folder: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path| fs::metadata(path).map(|metadata| metadata.dev());
    let above = folder.parent().map(device);
    above.is_some_and(|above| above.is_ok_and(|above| device(folder).is_ok_and(|own| own != above)))
}

#[cfg(not(unix))]
fn is_mount_point(_folder: &std::path::Path) -> bool {
    false
}
