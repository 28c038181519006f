//! `Cache`: compiled kernels on disk, so that a program starts in a fraction of a second the second time.
//!
//! An entry is found by a hash of everything that the machine code depends on (source, headers, options,
//! architecture, version of the compiler) and holds all of that beside the code. Invariants: entries appear by atomic
//! rename; one that is damaged, or belongs to another key of the same hash, counts as missing and is written again.

use overdrive_ir::eval::philox::site_of;
use std::io;
use std::path::{Path, PathBuf};

/// What an entry begins with; the number is that of the format.
const MAGIC: &[u8; 20] = b"overdrive-kernel 1\n\0";
/// Lengths of key and code, and the checksum of both.
const HEAD_BYTES: usize = MAGIC.len() + 3 * 8;

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's: `kernels` in `OVERDRIVE_CACHE`, else in the folder `overdrive` of `XDG_CACHE_HOME` or of what the
    /// system has for caches; none where no such place is known.
    pub fn of_user() -> Option<Self> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let system = if cfg!(windows) {
            variable("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            variable("HOME").map(|home| home.join("Library/Caches"))
        } else {
            variable("HOME").map(|home| home.join(".cache"))
        };
        let shared = || variable("XDG_CACHE_HOME").or(system).map(|caches| caches.join("overdrive"));
        Some(Self::at(variable("OVERDRIVE_CACHE").or_else(shared)?.join("kernels")))
    }

    /// The one in a folder, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of entries and their bytes; an absent folder is empty.
    ///
    /// # Errors
    /// What the system says about the folder.
    pub fn size(&self) -> io::Result<(usize, u64)> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            entries => entries?,
        };
        entries
            .flatten()
            .try_fold((0, 0), |(count, bytes), entry| Ok((count + 1, bytes + entry.metadata()?.len())))
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:016x}.cubin", site_of(key)))
    }

    /// The code for a key, if it is there and whole.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.entry(key)).ok()?;
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().expect("a slice of eight bytes")))
        };
        let [key_length, length, checksum] = [0, 8, 16].map(|at| number(MAGIC.len() + at));
        let code = HEAD_BYTES.checked_add(usize::try_from(key_length?).ok()?)?;
        let whole = bytes.starts_with(MAGIC)
            && code.checked_add(usize::try_from(length?).ok()?) == Some(bytes.len())
            && &bytes[HEAD_BYTES..code] == key.as_bytes()
            && sum(&bytes[HEAD_BYTES..]) == checksum?;
        whole.then(|| bytes.split_off(code))
    }

    /// Keeps the code for a key. A folder that cannot be written costs the next start its time and nothing else.
    pub(crate) fn put(&self, key: &str, code: &[u8]) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + key.len() + code.len());
        bytes.extend_from_slice(MAGIC);
        let content = [key.as_bytes(), code].concat();
        for number in [key.len() as u64, code.len() as u64, sum(&content)] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&content);
        let (entry, part) = (self.entry(key), self.folder.join(format!("{}.part", std::process::id())));
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&part, &bytes))
            .and_then(|()| std::fs::rename(&part, entry));
        if written.is_err() {
            // Nothing half-written stays; whether that fails too changes nothing.
            let _ = std::fs::remove_file(part);
        }
    }
}

/// FNV-1a, to tell damage.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
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
