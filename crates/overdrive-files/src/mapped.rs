//! A file that is read where it lies, mapped into memory. A large one is opened at once, and takes
//! only pages of the system's cache.
//!
//! Invariant: a file that another program makes shorter meanwhile is an error, as far as the system
//! tells in time. To read behind the end of a mapped file would end the process.

#![allow(unsafe_code)] // The system maps the file.

use crate::{FileError, open};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The bytes of a file.
#[derive(Debug)]
pub struct Mapped {
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl Mapped {
    /// Maps a regular file.
    ///
    /// # Errors
    /// As [`open`]; when the system does not map it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::of(open(path)?, path)
    }

    /// The same of an open file; `path` is what errors call it.
    ///
    /// # Errors
    /// When the system does not map it.
    pub fn of(file: File, path: &Path) -> Result<Self, FileError> {
        // SAFETY: The map is read only, and is dropped before `file` is closed. Another program may
        // write to the file meanwhile. Every value of a byte is one, and callers check what bytes
        // mean each time that they read them.
        let map = unsafe { Mmap::map(&file) }.map_err(FileError::io(path, "map"))?;
        Ok(Self { map, file, path: path.to_owned() })
    }

    /// The name of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// True when there were none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// These bytes, which must be within its length.
    ///
    /// # Errors
    /// When the file has become shorter.
    pub fn bytes(&self, range: Range<u64>) -> Result<&[u8], FileError> {
        let now = self.file.metadata().map_err(FileError::io(&self.path, "read"))?.len();
        if now < self.len() {
            let path = self.path.clone();
            return Err(FileError::Shortened { path, expected: self.len(), found: now });
        }
        Ok(&self.map[range.start as usize..range.end as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_becomes_shorter_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "0123456789").unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert_eq!((mapped.len(), mapped.bytes(3..6).unwrap()), (10, &b"345"[..]));
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4).unwrap();
        let said = mapped.bytes(0..2).unwrap_err().to_string();
        assert!(said.contains("file: expected 10 bytes") && said.contains("found 4"), "{said}");
        assert!(Mapped::open(folder.path()).unwrap_err().to_string().contains("found a folder"));
        fs::write(&path, "").unwrap();
        assert!(Mapped::open(&path).unwrap().is_empty());
    }
}
