//! `overdrive-files.json`: which files of a folder are ours, and what they must be.

use crate::checksum::Checksum;
use crate::contents::MANIFEST;
use crate::{FileError, SETTINGS, read_text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the manifest. Raised whenever older programs could misread it.
const VERSION: u32 = 1;

/// The files of a folder.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    overdrive_files: u32,
    /// The kind of the folder: a model, results.
    pub(crate) contents: String,
    /// By path in the folder, with `/`. A name that ends with `/` is a folder that is ours with all
    /// in it. A file without a checksum was being written when the program ended.
    pub(crate) files: BTreeMap<String, Option<Checksum>>,
}

impl Manifest {
    pub(crate) fn new(contents: &str) -> Self {
        Self { overdrive_files: VERSION, contents: contents.to_owned(), files: BTreeMap::new() }
    }

    /// That of a folder, if it has one.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let path = folder.join(MANIFEST);
        let text = match read_text(&path, SETTINGS) {
            Ok(text) => text,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(error),
        };
        let refused = |found: String| FileError::NoManifest { path: path.clone(), found };
        let manifest: Self =
            serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
        match manifest.overdrive_files {
            VERSION => Ok(Some(manifest)),
            other => Err(refused(format!("version {other}, this program reads {VERSION}"))),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a manifest is plain data") + "\n"
    }

    /// Whether a file of this path is ours.
    pub(crate) fn has(&self, name: &str) -> bool {
        let below = |listed: &String| listed.ends_with('/') && name.starts_with(listed.as_str());
        self.files.contains_key(name) || self.files.keys().any(below)
    }

    /// Errs where these are not the bytes that were written.
    pub(crate) fn check(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let Some(expected) = self.files.get(name).and_then(Option::as_ref) else { return Ok(()) };
        let found = Checksum::of(bytes);
        if found == *expected {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(FileError::Changed { path: folder.join(name), expected, found })
    }
}
