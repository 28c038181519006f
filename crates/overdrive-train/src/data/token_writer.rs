//! Writes a token file, block by block; [`token_header`](super::token_header) says its form.

use super::token_header::{BLOCK, HEADER, Header, LONG, Token};
use crate::TrainError;
use overdrive_files::hash;
use overdrive_formats::huggingface::Tokenizer;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A token file that is being written.
pub(super) struct TokenWriter {
    file: File,
    path: PathBuf,
    header: Header,
    /// Tokens of the block that is not full yet.
    block: Vec<Token>,
    checksums: Vec<u8>,
    long: Vec<u8>,
    name: String,
}

impl TokenWriter {
    /// Begins one in an empty file; `path` is what errors call it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn begin(
        mut file: File,
        path: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<Self, TrainError> {
        let (vocabulary, name) = (tokenizer.vocabulary() as u64, tokenizer.name());
        let digest = tokenizer.digest().into_bytes();
        let header = Header {
            id_bytes: Header::id_bytes_of(vocabulary),
            tokens: 0,
            vocabulary,
            long: 0,
            name: name.len() as u64,
            tokenizer: digest.try_into().expect("a digest has 32 digits"),
            index: 0,
        };
        // Until the end the file has no magic, so that nobody takes it for one that is whole.
        file.write_all(&[0; HEADER as usize]).map_err(TrainError::io(path, "write"))?;
        let (block, checksums, long) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { file, path: path.to_owned(), header, block, checksums, long, name })
    }

    /// Appends tokens.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn push(&mut self, mut tokens: &[Token]) -> Result<(), TrainError> {
        while !tokens.is_empty() {
            let room = BLOCK as usize - self.block.len();
            let (now, later) = tokens.split_at(room.min(tokens.len()));
            self.block.extend(now);
            tokens = later;
            if self.block.len() == BLOCK as usize {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When there is no token, or the file cannot be written.
    pub(super) fn finish(mut self) -> Result<(File, u64), TrainError> {
        self.end_block()?;
        if self.header.tokens == 0 {
            let (expected, remedy) = ("at least one token", "name texts that have words");
            return Err(TrainError::invalid(self.path.display(), expected, "none", remedy));
        }
        let index = [self.checksums, self.long, self.name.into_bytes()].concat();
        self.header.index = hash(&index);
        let header = self.header.to_bytes();
        let mut written = || {
            self.file.write_all(&index)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)
        };
        written().map_err(TrainError::io(&self.path, "write"))?;
        Ok((self.file, self.header.tokens))
    }

    fn end_block(&mut self) -> Result<(), TrainError> {
        let count = self.block.len();
        if count == 0 {
            return Ok(());
        }
        let id_bytes = self.header.id_bytes as usize;
        let mut bytes = Vec::with_capacity(count * (id_bytes + 1));
        for (id, _) in &self.block {
            bytes.extend(&id.to_le_bytes()[..id_bytes]);
        }
        for (number, &(_, length)) in (self.header.tokens..).zip(&self.block) {
            let short = u8::try_from(length).unwrap_or(LONG);
            bytes.push(short);
            if short == LONG {
                self.long.extend(number.to_le_bytes());
                self.long.extend(length.to_le_bytes());
                self.header.long += 1;
            }
        }
        self.checksums.extend(hash(&bytes).to_le_bytes());
        self.header.tokens += count as u64;
        self.block.clear();
        self.file.write_all(&bytes).map_err(TrainError::io(&self.path, "write"))
    }
}
