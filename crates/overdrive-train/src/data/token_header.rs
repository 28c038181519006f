//! The form of a token file: a header, blocks of tokens, and an index with a checksum a block.
//!
//! | part | bytes |
//! |---|---|
//! | header | 120: the fields below in their order, integers in little-endian, then its checksum |
//! | a block of 65,536 tokens, the last of the rest | ids of 2 or 4 bytes each, then a byte each: how many bytes of text the token stands for |
//! | checksums of the blocks | 16 each |
//! | long tokens, of 255 bytes of text or more, in order | 12 each: number of the token, its bytes of text |
//! | name of the tokenizer | as the header says |
//!
//! Checksums are XXH3 of 128 bits. Invariant: the header alone says how long the file is, and every
//! byte behind it is under a checksum.

use crate::TrainError;
use overdrive_files::hash;
use std::path::Path;

/// A token: its id and how many bytes of text it stands for.
pub type Token = (u32, u32);

/// The first bytes of a token file. No text in UTF-8 begins with the first of them.
pub(super) const MAGIC: &[u8; 16] = b"\x89overdrivetokens";
/// The form that is described above.
const VERSION: u32 = 1;
/// Tokens of a block: about as much as a disk reads in the time that it takes to find it.
pub(super) const BLOCK: u64 = 1 << 16;
/// Bytes of the header.
pub(super) const HEADER: u64 = 120;
/// Bytes of a checksum.
pub(super) const CHECKSUM: u64 = 16;
/// Bytes of an entry of a long token.
pub(super) const LONG_ENTRY: u64 = 12;
/// The byte of a token whose bytes of text stand in the list of long tokens.
pub(super) const LONG: u8 = u8::MAX;
/// The way to get a file that is whole.
pub(super) const REMEDY: &str = "make it again: overdrive tokens TEXT --tokenizer FILE -o FILE";

/// The facts of a token file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Bytes of an id: 2 or 4.
    pub(super) id_bytes: u32,
    /// Number of tokens.
    pub(super) tokens: u64,
    /// Ids are below this.
    pub(super) vocabulary: u64,
    /// Number of long tokens.
    pub(super) long: u64,
    /// Bytes of the tokenizer's name.
    pub(super) name: u64,
    /// The tokenizer's digest in hexadecimal.
    pub(super) tokenizer: [u8; 32],
    /// Checksum of the index: of all behind the blocks.
    pub(super) index: u128,
}

impl Header {
    /// Bytes of an id below `vocabulary`.
    pub(super) fn id_bytes_of(vocabulary: u64) -> u32 {
        if vocabulary <= 1 << 16 { 2 } else { 4 }
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.tokens.div_ceil(BLOCK)
    }

    /// Bytes of a token in a block.
    pub(super) fn token_bytes(&self) -> u64 {
        u64::from(self.id_bytes) + 1
    }

    /// The first byte behind the blocks.
    pub(super) fn index_start(&self) -> u64 {
        HEADER + self.tokens * self.token_bytes()
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u128 {
        let parts = [
            (self.tokens, self.token_bytes()),
            (self.blocks(), CHECKSUM),
            (self.long, LONG_ENTRY),
            (self.name, 1),
        ];
        let bytes = parts.map(|(count, bytes)| u128::from(count) * u128::from(bytes));
        u128::from(HEADER) + bytes.iter().sum::<u128>()
    }

    /// As it stands in the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.id_bytes.to_le_bytes());
        for field in [self.tokens, self.vocabulary, self.long, self.name] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(self.tokenizer);
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(hash(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the first bytes of a file of `found` bytes.
    ///
    /// # Errors
    /// When they are no header of this version, are damaged, or tell of another length.
    pub(super) fn parse(path: &Path, bytes: &[u8], found: u64) -> Result<Self, TrainError> {
        let wrong = |expected: &str, found: String| {
            Err(TrainError::invalid(path.display(), expected, found, REMEDY))
        };
        if !bytes.starts_with(MAGIC) {
            return wrong("a token file of `overdrive tokens`", "other bytes at its start".into());
        }
        if bytes.len() < HEADER as usize {
            return wrong("a header of 120 bytes", format!("a file of {found}: it is cut short"));
        }
        let (fields, checksum) = bytes[..HEADER as usize].split_at((HEADER - CHECKSUM) as usize);
        let mut rest = &fields[MAGIC.len()..];
        let version = u32::from_le_bytes(taken(&mut rest));
        if version != VERSION {
            let expected = format!("a token file of version {VERSION}");
            return wrong(&expected, format!("version {version}, of another Overdrive"));
        }
        if hash(fields).to_le_bytes() != checksum {
            return wrong("the header as it was written", "another checksum: it is damaged".into());
        }
        let id_bytes = u32::from_le_bytes(taken(&mut rest));
        let mut field = || u64::from_le_bytes(taken(&mut rest));
        let (tokens, vocabulary, long, name) = (field(), field(), field(), field());
        let tokenizer = taken(&mut rest);
        let index = u128::from_le_bytes(taken(&mut rest));
        let header = Self { id_bytes, tokens, vocabulary, long, name, tokenizer, index };
        if tokens == 0 || id_bytes != Self::id_bytes_of(vocabulary) {
            return wrong(
                "tokens with ids that fit the vocabulary",
                format!("{tokens} tokens of {id_bytes} bytes, of {vocabulary} ids"),
            );
        }
        let expected = header.file_bytes();
        if u128::from(found) != expected {
            let expected = format!("{expected} bytes, for the {tokens} tokens of its header");
            return wrong(&expected, format!("{found}: it is cut short or longer"));
        }
        Ok(header)
    }
}

/// The next bytes of a header, whose length was seen.
fn taken<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, behind) = rest.split_first_chunk().expect("the header has its length");
    *rest = behind;
    *first
}
