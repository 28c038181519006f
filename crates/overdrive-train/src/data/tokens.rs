//! A text as token ids, read where they lie: a file of any length is trained on with one window a
//! sample in memory.
//!
//! Invariant: the bytes of text behind all tokens sum up to the text's, so that bits per byte
//! compare across tokenizers.

use crate::TrainError;
use overdrive_formats::huggingface::Tokenizer;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Ids of a plain text: its bytes.
const BYTES: usize = 256;

/// Bytes that are looked at in one go.
const CHUNK: usize = 1 << 16;

/// The place of the ids.
#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File { file: Mutex<File>, path: PathBuf },
}

/// How a token is represented in the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// The byte that it is.
    Byte,
    /// Its id and how many bytes of text it stands for, two u32 in little-endian.
    Encoded,
}

impl Form {
    fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Encoded => 8,
        }
    }
}

/// A token: its id and how many bytes of text it stands for.
pub type Token = (u32, u32);

/// A sequence of token ids.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    form: Form,
    len: u64,
    vocabulary: usize,
}

impl Tokens {
    /// A text in memory, a token a byte.
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { source: Source::Memory(bytes), form: Form::Byte, len, vocabulary: BYTES }
    }

    /// A text file, a token a byte. The file is read through once, to see that it is text.
    ///
    /// # Errors
    /// When it cannot be read, is not UTF-8, or is empty.
    pub fn of_file(path: &Path) -> Result<Self, TrainError> {
        let file = overdrive_files::open(path)?;
        let len = check_utf8(path, &file)?;
        let source = Source::File { file: Mutex::new(file), path: path.to_owned() };
        Ok(Self { source, form: Form::Byte, len, vocabulary: BYTES })
    }

    /// This text, a token a byte, in the tokens of a tokenizer. They lie in an unnamed file, so
    /// that a text of any length takes a chunk of memory. Chunks end before white space, where no
    /// tokenizer of words joins two.
    ///
    /// # Errors
    /// When the tokenizer has no token for a part of it, or files cannot be read or written.
    pub fn encoded(&self, tokenizer: &Tokenizer) -> Result<Self, TrainError> {
        assert_eq!(self.form, Form::Byte, "a text is encoded once");
        let place = Path::new("a temporary file");
        let mut file =
            BufWriter::new(tempfile::tempfile().map_err(TrainError::io(place, "create"))?);
        let (mut pending, mut read, mut len) = (Vec::new(), 0, 0);
        while read < self.len || !pending.is_empty() {
            let count = (CHUNK as u64).min(self.len - read);
            pending.extend(self.read(read, count as usize)?.into_iter().map(|id| id as u8));
            read += count;
            let end = if read == self.len { pending.len() } else { end_of_words(&pending) };
            let text = std::str::from_utf8(&pending[..end]).expect("the text was seen to be UTF-8");
            let tokens = tokenizer.tokens(text).map_err(|error| {
                let remedy = "use a tokenizer that knows every character, or clean the text";
                TrainError::invalid("text", "text that the tokenizer knows", error, remedy)
            })?;
            for (id, bytes) in &tokens {
                let entry = [id.to_le_bytes(), bytes.to_le_bytes()].concat();
                file.write_all(&entry).map_err(TrainError::io(place, "write"))?;
            }
            len += tokens.len() as u64;
            pending.drain(..end);
        }
        let file = file.into_inner().map_err(|e| TrainError::io(place, "write")(e.into_error()))?;
        let source = Source::File { file: Mutex::new(file), path: place.to_owned() };
        Ok(Self { source, form: Form::Encoded, len, vocabulary: tokenizer.vocabulary() })
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

    /// `count` ids from `start` on, which must be there.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn read(&self, start: u64, count: usize) -> Result<Vec<u32>, TrainError> {
        Ok(self.tokens(start, count)?.into_iter().map(|(id, _)| id).collect())
    }

    /// The same with the bytes of text behind each.
    ///
    /// # Errors
    /// As `read`.
    pub fn tokens(&self, start: u64, count: usize) -> Result<Vec<Token>, TrainError> {
        assert!(start + count as u64 <= self.len, "tokens {start} + {count} of {}", self.len);
        let (offset, bytes) = (start * self.form.bytes() as u64, count * self.form.bytes());
        let number = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes"));
        let tokens = |bytes: &[u8]| match self.form {
            Form::Byte => bytes.iter().map(|&b| (u32::from(b), 1)).collect(),
            Form::Encoded => {
                bytes.chunks_exact(8).map(|c| (number(&c[..4]), number(&c[4..]))).collect()
            }
        };
        match &self.source {
            Source::Memory(all) => Ok(tokens(&all[offset as usize..][..bytes])),
            Source::File { file, path } => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let mut read = vec![0; bytes];
                file.seek(SeekFrom::Start(offset)).map_err(TrainError::io(path, "read"))?;
                file.read_exact(&mut read).map_err(TrainError::io(path, "read"))?;
                Ok(tokens(&read))
            }
        }
    }
}

/// The end of the last word that certainly ends in a chunk; without white space, the end of its
/// last whole character.
fn end_of_words(chunk: &[u8]) -> usize {
    let starts_space =
        |at: &usize| chunk[*at].is_ascii_whitespace() && !chunk[at - 1].is_ascii_whitespace();
    let whole = || std::str::from_utf8(chunk).map_or_else(|e| e.valid_up_to(), str::len);
    (1..chunk.len()).rev().find(starts_space).unwrap_or_else(whole)
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
        return Err(TrainError::invalid(
            path.display(),
            "text",
            "an empty file",
            "name another file",
        ));
    }
    Ok(len)
}
