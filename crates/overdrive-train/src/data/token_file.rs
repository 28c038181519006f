//! A token file, mapped into memory; [`token_header`](super::token_header) says its form.
//!
//! Opening it reads the header and the index. Invariant: no token is given before its block was
//! held against the checksum, once a run.

use super::token_header::{
    BLOCK, CHECKSUM, HEADER, Header, LONG, LONG_ENTRY, MAGIC, REMEDY, Token,
};
use crate::TrainError;
use overdrive_files::{Mapped, hash};
use overdrive_formats::huggingface::Tokenizer;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// First bytes by which a damaged file is still known: it is then no text with a fault.
const KNOWN_BY: usize = 12;

/// Whether a file is a token file, if perhaps a damaged one.
///
/// # Errors
/// When it cannot be read.
pub fn is_token_file(path: &Path) -> Result<bool, TrainError> {
    let first = overdrive_files::beginning(path, MAGIC.len() as u64)?;
    Ok(first.iter().zip(MAGIC).filter(|(found, byte)| found == byte).count() >= KNOWN_BY)
}

/// A token file.
#[derive(Debug)]
pub(super) struct TokenFile {
    file: Mapped,
    header: Header,
    checksums: Vec<u128>,
    /// Whether a block has its checksum.
    is_whole: Vec<AtomicBool>,
    /// Long tokens by their number, in order, and the bytes of text of each.
    long: Vec<(u64, u32)>,
    /// The name of the tokenizer where the file was made.
    name: String,
}

impl TokenFile {
    /// Opens one.
    ///
    /// # Errors
    /// When it is none, is of another version, or is damaged as far as header and index tell.
    pub(super) fn of(file: Mapped) -> Result<Self, TrainError> {
        let path = file.path().to_owned();
        let first = file.bytes(0..HEADER.min(file.len()))?;
        let header = Header::parse(&path, first, file.len())?;
        let index = file.bytes(header.index_start()..file.len())?;
        if hash(index) != header.index {
            let (expected, found) = ("the index as it was written", "another checksum");
            let found = format!("{found}: its end is damaged");
            return Err(TrainError::invalid(path.display(), expected, found, REMEDY));
        }
        let (checksums, rest) = index.split_at((header.blocks() * CHECKSUM) as usize);
        let (long, name) = rest.split_at((header.long * LONG_ENTRY) as usize);
        let checksums: Vec<u128> = checksums.chunks_exact(CHECKSUM as usize).map(wide).collect();
        let entry = |bytes: &[u8]| {
            let (number, length) = bytes.split_at(8);
            (wide(number) as u64, wide(length) as u32)
        };
        Ok(Self {
            is_whole: checksums.iter().map(|_| AtomicBool::new(false)).collect(),
            checksums,
            long: long.chunks_exact(LONG_ENTRY as usize).map(entry).collect(),
            name: String::from_utf8_lossy(name).into_owned(),
            header,
            file,
        })
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Ids are below this.
    pub(super) fn vocabulary(&self) -> usize {
        self.header.vocabulary as usize
    }

    /// Errs unless its tokens are those of this tokenizer.
    ///
    /// # Errors
    /// It names both tokenizers.
    pub(super) fn check(&self, tokenizer: &Tokenizer) -> Result<(), TrainError> {
        let (expected, found) =
            (tokenizer.digest(), String::from_utf8_lossy(&self.header.tokenizer));
        if expected == found {
            return Ok(());
        }
        let name = tokenizer.name();
        let remedy = format!(
            "the two number tokens in different ways: make the file with this tokenizer, overdrive \
             tokens TEXT --tokenizer {name} -o FILE, or name the other"
        );
        Err(TrainError::invalid(
            self.file.path().display(),
            format!("tokens of the tokenizer `{name}` (digest {expected})"),
            format!("tokens of `{}` (digest {found})", self.name),
            &remedy,
        ))
    }

    /// Tokens of this range, which must be there, with the bytes of text behind each.
    ///
    /// # Errors
    /// When a block is damaged, or the file has become shorter.
    pub(super) fn tokens(&self, range: Range<u64>) -> Result<Vec<Token>, TrainError> {
        let mut tokens = Vec::with_capacity((range.end - range.start) as usize);
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let whole = self.block(block);
            let bytes = self.whole_block(block)?;
            let id_bytes = self.header.id_bytes as usize;
            let (ids, lengths) = bytes.split_at((whole.end - whole.start) as usize * id_bytes);
            for number in range.start.max(whole.start)..range.end.min(whole.end) {
                let place = (number - whole.start) as usize;
                let id = wide(&ids[place * id_bytes..][..id_bytes]) as u32;
                if id as usize >= self.vocabulary() {
                    let expected = format!("ids below {}", self.vocabulary());
                    return Err(self.damaged(number..number + 1, &expected, &id.to_string()));
                }
                let length = match lengths[place] {
                    LONG => self.long_token(number)?,
                    short => u32::from(short),
                };
                tokens.push((id, length));
            }
        }
        Ok(tokens)
    }

    /// Adds all that tells this range from another: a whole block by its checksum, so that a large
    /// file is not read.
    ///
    /// # Errors
    /// As `tokens`.
    pub(super) fn hash(&self, range: Range<u64>, into: &mut Sha256) -> Result<(), TrainError> {
        into.update(self.header.tokenizer);
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let whole = self.block(block);
            if range.start <= whole.start && whole.end <= range.end {
                into.update(self.checksums[block as usize].to_le_bytes());
                continue;
            }
            let part = range.start.max(whole.start)..range.end.min(whole.end);
            for (id, length) in self.tokens(part)? {
                into.update(id.to_le_bytes());
                into.update(length.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The tokens of a block.
    fn block(&self, block: u64) -> Range<u64> {
        block * BLOCK..self.len().min((block + 1) * BLOCK)
    }

    /// The bytes of a block, which have their checksum.
    fn whole_block(&self, block: u64) -> Result<&[u8], TrainError> {
        let (tokens, each) = (self.block(block), self.header.token_bytes());
        let bytes = self.file.bytes(HEADER + tokens.start * each..HEADER + tokens.end * each)?;
        let (is_whole, expected) = (&self.is_whole[block as usize], self.checksums[block as usize]);
        if !is_whole.load(Ordering::Relaxed) {
            let found = hash(bytes);
            if found != expected {
                let [expected, found] = [expected, found].map(|sum| format!("checksum {sum:032x}"));
                return Err(self.damaged(tokens, &expected, &found));
            }
            is_whole.store(true, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    /// Bytes of text of a long token.
    fn long_token(&self, number: u64) -> Result<u32, TrainError> {
        let found = self.long.binary_search_by_key(&number, |(number, _)| *number);
        let place = found
            .map_err(|_| self.damaged(number..number + 1, "the length of a long token", "none"))?;
        Ok(self.long[place].1)
    }

    fn damaged(&self, tokens: Range<u64>, expected: &str, found: &str) -> TrainError {
        let place = self.file.path().display();
        let place = format!("{place}, tokens {} to {}", tokens.start, tokens.end - 1);
        let found = format!("{found}: it is damaged");
        TrainError::invalid(place, expected, found, REMEDY)
    }
}

/// An integer in little-endian, of at most 16 bytes.
fn wide(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
