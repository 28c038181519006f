//! Files that appear one by one in a folder, each whole, each listed before it is there.

use crate::checksum::Checksum;
use crate::contents::PlaceKind;
use crate::leaf::leaves;
use crate::ledger::Ledger;
use crate::manifest::Manifest;
use crate::place::Place;
use crate::{FileError, MANIFEST, UNBOUNDED, read};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

impl Place {
    /// Writes a file of the folder, in place of the one of this name.
    ///
    /// # Errors
    /// When the system refuses; the file is then as it was.
    pub fn put(&self, name: &str, content: &[u8]) -> Result<(), FileError> {
        self.list(name)?;
        self.write(name, content)?;
        self.ledger().manifest.files.insert(name.to_owned(), Some(Checksum::of(content)));
        Ok(())
    }

    /// Makes a folder in the folder that is ours with all that comes into it, and clears it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn own(&self, name: &str) -> Result<PathBuf, FileError> {
        self.list(&format!("{name}/"))?;
        let folder = self.target.join(name);
        let cleared = if folder.is_dir() { fs::remove_dir_all(&folder) } else { Ok(()) };
        cleared.and_then(|()| fs::create_dir_all(&folder)).map_err(self.unwritable())?;
        Ok(self.shown.join(name))
    }

    /// Ends the writing. The manifest gets the checksums. Files of an earlier command of this kind
    /// that were not written again are removed.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn finish(&self) -> Result<(), FileError> {
        let PlaceKind::Files(contents) = self.kind else { unreachable!("a place of files") };
        let mut manifest = self.ledger().manifest.clone();
        let stale = |(name, sum): &(&String, &Option<Checksum>)| {
            sum.is_none() && !name.ends_with('/') && (contents.writes)(name)
        };
        let stale: Vec<String> =
            manifest.files.iter().filter(stale).map(|(name, _)| name.clone()).collect();
        for name in stale {
            // One that is not there any more is no fault.
            let _ = fs::remove_file(self.target.join(&name));
            manifest.files.remove(&name);
        }
        self.write(MANIFEST, manifest.to_json().as_bytes())
    }

    /// Lists a file before it appears, so that a killed writer's are known as ours.
    fn list(&self, name: &str) -> Result<(), FileError> {
        let text = {
            let mut ledger = self.ledger();
            if ledger.written.files.get(name) == Some(&None) {
                return Ok(());
            }
            ledger.manifest.files.insert(name.to_owned(), None);
            ledger.written = ledger.manifest.clone();
            ledger.manifest.to_json()
        };
        self.write(MANIFEST, text.as_bytes())
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no writer panicked")
    }

    /// Replaces a file of the folder by these bytes, at once.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), FileError> {
        let (draft, path) = (self.draft(), self.target.join(name));
        let folder = path.parent().filter(|folder| *folder != self.target);
        let made = folder.map_or(Ok(()), fs::create_dir_all);
        let written =
            made.and_then(|()| synced(&draft, content)).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|source| {
            // The draft may not exist; the error that matters is the first.
            let _ = fs::remove_file(&draft);
            FileError::Unwritable { path: self.shown.join(name), option: self.option, source }
        })
    }
}

fn synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

impl Manifest {
    /// Lists all that lies in a folder.
    pub(crate) fn add_all(&mut self, folder: &Path) -> Result<(), FileError> {
        for name in leaves(folder, &|_| true)? {
            let sum = Checksum::of(&read(&folder.join(&name), UNBOUNDED)?);
            self.files.insert(name, Some(sum));
        }
        Ok(())
    }
}
