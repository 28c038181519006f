//! A text as token ids, read where they lie: a file of any length is trained on with one window a
//! sample in memory.
//!
//! Invariant: the bytes of text behind all tokens sum up to the text's, so that bits per byte
//! compare across tokenizers.

use super::text::Text;
use super::token_file::{TokenFile, is_token_file};
use super::token_header::Token;
use super::tokenize::write_tokens;
use crate::TrainError;
use overdrive_files::Mapped;
use overdrive_formats::huggingface::Tokenizer;
use sha2::{Digest, Sha256};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

/// Ids of a plain text: its bytes.
const BYTES: usize = 256;

/// Bytes of a text that are hashed at a time.
const HASHED: u64 = 1 << 16;

/// The place of the tokens.
#[derive(Debug)]
enum Source {
    /// A token a byte.
    Text(Text),
    File(TokenFile),
}

/// A sequence of token ids.
#[derive(Debug)]
pub struct Tokens(Source);

impl Tokens {
    /// A text in memory, a token a byte.
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Self(Source::Text(Text::of_bytes(bytes)))
    }

    /// A token file; or a text file, a token a byte, which is read through once to see that it is
    /// text.
    ///
    /// # Errors
    /// When it cannot be read, is a damaged token file, is not UTF-8, or is empty.
    pub fn of_file(path: &Path) -> Result<Self, TrainError> {
        match is_token_file(path)? {
            true => Ok(Self(Source::File(TokenFile::of(Mapped::open(path)?)?))),
            false => Ok(Self(Source::Text(Text::open(path)?))),
        }
    }

    /// A text in the tokens of a tokenizer. They lie in an unnamed token file, so that a text of
    /// any length takes little memory. A token file is given as it is.
    ///
    /// # Errors
    /// When the tokenizer has no token for a part of the text, or is not that of the token file.
    /// When files cannot be read or written.
    pub fn encoded(self: &Arc<Self>, tokenizer: &Tokenizer) -> Result<Arc<Self>, TrainError> {
        let text = match &self.0 {
            Source::Text(text) => std::slice::from_ref(text),
            Source::File(file) => return file.check(tokenizer).map(|()| Arc::clone(self)),
        };
        let place = Path::new("a temporary file");
        let file = tempfile::tempfile().map_err(TrainError::io(place, "create"))?;
        let mut on = |_| ControlFlow::Continue(());
        let written = write_tokens(text, (tokenizer, None), (file, place), &mut on)?;
        let (file, _) = written.expect("nobody ends it before");
        Ok(Arc::new(Self(Source::File(TokenFile::of(Mapped::of(file, place)?)?))))
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Source::Text(text) => text.len(),
            Source::File(file) => file.len(),
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            Source::Text(_) => BYTES,
            Source::File(file) => file.vocabulary(),
        }
    }

    /// `count` ids from `start` on, which must be there.
    ///
    /// # Errors
    /// When the file cannot be read any more, or is damaged there.
    pub fn read(&self, start: u64, count: usize) -> Result<Vec<u32>, TrainError> {
        Ok(self.tokens(start, count)?.into_iter().map(|(id, _)| id).collect())
    }

    /// The same with the bytes of text behind each.
    ///
    /// # Errors
    /// As `read`.
    pub fn tokens(&self, start: u64, count: usize) -> Result<Vec<Token>, TrainError> {
        let range = start..start + count as u64;
        assert!(range.end <= self.len(), "tokens {start} + {count} of {}", self.len());
        match &self.0 {
            Source::Text(text) => {
                Ok(text.bytes(range)?.iter().map(|&byte| (u32::from(byte), 1)).collect())
            }
            Source::File(file) => file.tokens(range),
        }
    }

    /// Adds the content of a range to a hash.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn hash(&self, range: Range<u64>, into: &mut Sha256) -> Result<(), TrainError> {
        let Source::File(file) = &self.0 else {
            let mut start = range.start;
            while start < range.end {
                let count = HASHED.min(range.end - start);
                let ids = self.read(start, count as usize)?;
                ids.iter().for_each(|id| into.update(id.to_le_bytes()));
                start += count;
            }
            return Ok(());
        };
        file.hash(range, into)
    }
}
