//! A text as token ids, read where they lie: a file of any length is trained on with one window a sample in memory.

use crate::TrainError;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Ids of a plain text: its bytes.
const BYTES: usize = 256;

/// Bytes that are looked at in one go.
const CHUNK: usize = 1 << 16;

/// Where the ids are.
#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File { file: Mutex<File>, path: PathBuf },
}

/// A sequence of token ids.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    /// Bytes of an id: 1, or 4 in little-endian.
    width: usize,
    len: u64,
    vocabulary: usize,
    /// Bytes of text behind each id; `None` where each id is a byte.
    lengths: Option<Vec<u32>>,
}

impl Tokens {
    /// A text in memory, a token a byte.
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { source: Source::Memory(bytes), width: 1, len, vocabulary: BYTES, lengths: None }
    }

    /// A text file, a token a byte. The file is read through once, to see that it is text.
    ///
    /// # Errors
    /// When it cannot be read, is not UTF-8, or is empty.
    pub fn of_file(path: &Path) -> Result<Self, TrainError> {
        let file = File::open(path).map_err(TrainError::io(path, "open"))?;
        let len = check_utf8(path, &file)?;
        let source = Source::File { file: Mutex::new(file), path: path.to_owned() };
        Ok(Self { source, width: 1, len, vocabulary: BYTES, lengths: None })
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Bytes of text behind an id.
    pub fn bytes_of(&self, id: u32) -> u64 {
        self.lengths.as_ref().map_or(1, |lengths| u64::from(lengths[id as usize]))
    }

    /// `count` ids from `start` on, which must be there.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn read(&self, start: u64, count: usize) -> Result<Vec<u32>, TrainError> {
        assert!(start + count as u64 <= self.len, "tokens {start} + {count} of {}", self.len);
        let (offset, bytes) = (start * self.width as u64, count * self.width);
        let ids = |bytes: &[u8]| match self.width {
            1 => bytes.iter().map(|&b| u32::from(b)).collect(),
            _ => bytes
                .chunks_exact(4)
                .map(|c| u32::from_le_bytes(c.try_into().expect("chunks of four bytes")))
                .collect(),
        };
        match &self.source {
            Source::Memory(all) => Ok(ids(&all[offset as usize..][..bytes])),
            Source::File { file, path } => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let mut read = vec![0; bytes];
                file.seek(SeekFrom::Start(offset)).map_err(TrainError::io(path, "read"))?;
                file.read_exact(&mut read).map_err(TrainError::io(path, "read"))?;
                Ok(ids(&read))
            }
        }
    }
}

/// Length of a file that is UTF-8 from end to end.
fn check_utf8(path: &Path, file: &File) -> Result<u64, TrainError> {
    let mut reader = BufReader::new(file);
    let (mut pending, mut len) = (Vec::new(), 0u64);
    loop {
        let before = pending.len();
        let read = (&mut reader).take(CHUNK as u64).read_to_end(&mut pending);
        let read = read.map_err(TrainError::io(path, "read"))?;
        let fault = |at: usize| {
            let (expected, place) = ("UTF-8 text", path.display());
            let found = format!("other bytes at offset {}", len - before as u64 + at as u64);
            TrainError::invalid(place, expected, found, "convert the file, `iconv -t UTF-8`")
        };
        match std::str::from_utf8(&pending) {
            Ok(_) => pending.clear(),
            // A character may be cut by the end of the chunk, but not by the end of the file.
            Err(e) if e.error_len().is_none() && read > 0 => drop(pending.drain(..e.valid_up_to())),
            Err(e) => return Err(fault(e.valid_up_to())),
        }
        len += read as u64;
        if read == 0 {
            break;
        }
    }
    if len == 0 {
        return Err(TrainError::invalid(path.display(), "text", "an empty file", "name another file"));
    }
    Ok(len)
}
