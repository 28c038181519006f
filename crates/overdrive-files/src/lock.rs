//! One writer at a place: an advisory lock that ends with its process, however that ends.

use crate::FileError;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A lock that is held; its file holds the id of the process, and goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    file: File,
}

/// Why a lock is not held.
pub(crate) enum NoLock {
    /// Another process holds it.
    Busy { pid: String },
    /// The system refused.
    Refused(io::Error),
}

impl Lock {
    /// Takes the lock whose file is `path`. A lock that a dead process left is taken over.
    pub(crate) fn take(path: &Path) -> Result<Self, NoLock> {
        loop {
            let file = options().open(path).map_err(NoLock::Refused)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(NoLock::Busy { pid: holder(&file) }),
                // A file system without locks is used without.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(NoLock::Refused(error)),
            }
            // Its holder may have removed the file between the two calls: then the next one has
            // another file.
            if !is_at(&file, path) {
                continue;
            }
            let mut lock = Self { path: path.to_owned(), file };
            // The id is only for messages, so that a full disk is no reason to stop here.
            let _ = lock.file.set_len(0).and_then(|()| write!(lock.file, "{}", std::process::id()));
            return Ok(lock);
        }
    }

    /// For whoever may look, an error of a place.
    pub(crate) fn or_error(place: &Path, option: &'static str, found: NoLock) -> FileError {
        let path = place.to_owned();
        match found {
            NoLock::Busy { pid } => FileError::Busy { path, pid },
            NoLock::Refused(source) => FileError::Unwritable { path, option, source },
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still held, so that nobody else's file is removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits() as i32);
    }
    options
}

/// The id that the holder wrote.
fn holder(mut file: &File) -> String {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.take(20).read_to_string(&mut pid));
    if read.is_ok() && !pid.is_empty() { pid } else { "of unknown id".to_owned() }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let there = fs::symlink_metadata(path).map(id);
    there.is_ok_and(|there| file.metadata().map(id).is_ok_and(|held| held == there))
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_a_file_left_behind_holds_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".model.lock");
        fs::write(&path, "999999999").unwrap();
        let held = Lock::take(&path).ok().unwrap();
        let Err(NoLock::Busy { pid }) = Lock::take(&path) else { panic!("two hold it") };
        assert_eq!(pid, std::process::id().to_string());
        drop(held);
        assert!(!path.exists());
        assert!(Lock::take(&path).is_ok());
    }
}
