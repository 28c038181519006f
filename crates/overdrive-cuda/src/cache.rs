//! `Cache`: results that took long to find, on disk: compiled kernels, and choices between
//! candidates. With them a program starts in a fraction of a second the second time.
//!
//! An entry is found by a hash of everything that it depends on, and holds all of that beside its
//! content. Machine code depends on its source, headers, options, architecture and the compiler's
//! version. Invariants: entries appear by atomic rename. An entry that is damaged, or that belongs
//! to another key of the same hash, counts as missing and is written again.

use overdrive_ir::eval::philox::site_of;
use std::io;
use std::path::{Path, PathBuf};

/// The beginning of an entry; the number is that of the format.
const MAGIC: &[u8; 20] = b"overdrive-kernel 1\n\0";
/// Lengths of key and content, and the checksum of both.
const HEAD_BYTES: usize = MAGIC.len() + 3 * 8;

/// A folder of entries.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's for compiled kernels; none where no place for it is known.
    pub fn of_user() -> Option<Self> {
        Self::of_user_for("kernels")
    }

    /// The user's for entries of a kind.
    pub(crate) fn of_user_for(kind: &str) -> Option<Self> {
        Some(Self::at(Self::root_of_user()?.join(kind)))
    }

    /// The folder of the user's caches of every kind: `OVERDRIVE_CACHE`, else the folder
    /// `overdrive` of `XDG_CACHE_HOME` or of the system's folder for caches. None where no such
    /// place is known.
    pub fn root_of_user() -> Option<PathBuf> {
        let variable = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let system = if cfg!(windows) {
            variable("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            variable("HOME").map(|home| home.join("Library/Caches"))
        } else {
            variable("HOME").map(|home| home.join(".cache"))
        };
        let shared =
            || variable("XDG_CACHE_HOME").or(system).map(|caches| caches.join("overdrive"));
        variable("OVERDRIVE_CACHE").or_else(shared)
    }

    /// The one in a folder, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of entries and their bytes; an absent folder is empty.
    ///
    /// # Errors
    /// The system's error about the folder.
    pub fn size(&self) -> io::Result<(usize, u64)> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            entries => entries?,
        };
        entries.flatten().try_fold((0, 0), |(count, bytes), entry| {
            Ok((count + 1, bytes + entry.metadata()?.len()))
        })
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:016x}.entry", site_of(key)))
    }

    /// Key and content of every whole entry, in order of keys; an absent folder has none.
    ///
    /// # Errors
    /// The system's error about the folder.
    pub(crate) fn entries(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let files = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            files => files?,
        };
        let mut entries: Vec<_> = files.flatten().filter_map(|file| whole(&file.path())).collect();
        entries.sort();
        Ok(entries)
    }

    /// The content for a key, if it is there and whole.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        whole(&self.entry(key)).filter(|(found, _)| found == key).map(|(_, content)| content)
    }

    /// Keeps the content for a key. A folder that cannot be written costs the next start its time
    /// and nothing else.
    pub(crate) fn put(&self, key: &str, content: &[u8]) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + key.len() + content.len());
        bytes.extend_from_slice(MAGIC);
        let whole = [key.as_bytes(), content].concat();
        for number in [key.len() as u64, content.len() as u64, sum(&whole)] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&whole);
        let (entry, part) =
            (self.entry(key), self.folder.join(format!("{}.part", std::process::id())));
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&part, &bytes))
            .and_then(|()| std::fs::rename(&part, entry));
        if written.is_err() {
            // Nothing half-written stays; whether that fails too changes nothing.
            let _ = std::fs::remove_file(part);
        }
    }
}

/// Key and content of an entry, if it is there and whole.
fn whole(entry: &Path) -> Option<(String, Vec<u8>)> {
    let mut bytes = std::fs::read(entry).ok()?;
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("a slice of eight bytes")))
    };
    let [key_length, length, checksum] = [0, 8, 16].map(|at| number(MAGIC.len() + at));
    let content = HEAD_BYTES.checked_add(usize::try_from(key_length?).ok()?)?;
    let is_whole = bytes.starts_with(MAGIC)
        && content.checked_add(usize::try_from(length?).ok()?) == Some(bytes.len())
        && sum(&bytes[HEAD_BYTES..]) == checksum?;
    let key = is_whole.then(|| String::from_utf8(bytes[HEAD_BYTES..content].to_vec()).ok())??;
    Some((key, bytes.split_off(content)))
}

/// FNV-1a, to tell damage.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_damaged_or_foreign_ones_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("kernels"));
        assert_eq!(cache.size().unwrap(), (0, 0));
        assert_eq!(cache.get("a"), None);
        cache.put("a", b"code of a");
        cache.put("b", b"");
        assert_eq!(cache.get("a").as_deref(), Some(&b"code of a"[..]));
        assert_eq!(cache.get("b").as_deref(), Some(&b""[..]));
        assert_eq!(cache.size().unwrap().0, 2);
        let all = [("a", &b"code of a"[..]), ("b", b"")];
        assert_eq!(
            cache.entries().unwrap(),
            all.map(|(key, content)| (key.to_owned(), content.to_vec()))
        );

        let whole = std::fs::read(cache.entry("a")).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(cache.entry("a"), &damaged).unwrap();
            assert_eq!(cache.get("a"), None, "byte {at}");
            std::fs::write(cache.entry("a"), &whole[..at]).unwrap();
            assert_eq!(cache.get("a"), None, "cut at {at}");
        }
        std::fs::copy(cache.entry("b"), cache.entry("a")).unwrap();
        assert_eq!(cache.get("a"), None, "another key's entry under this hash");
        cache.put("a", b"new");
        assert_eq!(cache.get("a").as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let cache = Cache::at(file.join("kernels"));
        cache.put("a", b"code");
        assert_eq!(cache.get("a"), None);
    }
}
