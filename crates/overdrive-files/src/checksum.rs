//! Size and checksum of a file.
//!
//! XXH3 of 128 bits, by what it is for: damage, not an enemy. It reads memory as fast as a copy
//! does, where SHA-256 takes seconds for a model of a gigabyte on processors without instructions
//! for it.

use crate::{FileError, open};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Bytes of a file that are read at a time.
const PIECE: usize = 1 << 20;

/// XXH3-128 of these bytes.
pub fn hash(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes)
}

/// Size and hash of a file as it was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checksum {
    /// Its size.
    bytes: u64,
    /// XXH3-128 in hexadecimal, as `xxhsum -H2` prints it.
    xxh3_128: String,
}

impl Checksum {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, xxh3_128: format!("{:032x}", hash(bytes)) }
    }

    /// That of a file, which is read in pieces.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_file(path: &Path) -> Result<Self, FileError> {
        let (mut file, mut hash) = (open(path)?, twox_hash::XxHash3_128::default());
        let (mut bytes, mut piece) = (0, vec![0; PIECE]);
        loop {
            let count = file.read(&mut piece).map_err(FileError::io(path, "read"))?;
            if count == 0 {
                let xxh3_128 = format!("{:032x}", hash.finish_128());
                return Ok(Self { bytes, xxh3_128 });
            }
            hash.write(&piece[..count]);
            bytes += count as u64;
        }
    }
}

/// A checksum of many pieces, in hexadecimal: whether two things are the same.
#[derive(Clone, Default)]
pub struct Digest(twox_hash::XxHash3_128);

impl Digest {
    /// Takes in a piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// XXH3-128 of all pieces with their lengths.
    pub fn finish(&self) -> String {
        format!("{:032x}", self.0.finish_128())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.finish())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of checksum {}", self.bytes, self.xxh3_128)
    }
}
