//! Text to token ids and back: `tokenizer.json`, or plain bytes.
//!
//! The `tokenizers` crate does the work, with the regular expressions of a pure Rust crate. It
//! panics on some files whose parts do not fit each other. So every call into it is guarded, and a
//! file is tried before it is accepted. Invariant: the ids that a tokenizer gives are below the
//! vocabulary that it was opened for.

mod bytes;
mod guard;

use crate::FormatError;
use guard::guarded;
use overdrive_files::Digest;
use std::path::{Path, PathBuf};

/// Text to token ids and back.
#[derive(Clone)]
pub struct Tokenizer(TokenizerKind);

#[derive(Clone)]
enum TokenizerKind {
    Bytes,
    /// The library's, and where it was read.
    File(Box<tokenizers::Tokenizer>, PathBuf),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            TokenizerKind::Bytes => f.write_str("Tokenizer(bytes)"),
            TokenizerKind::File(..) => f.write_str("Tokenizer(tokenizer.json)"),
        }
    }
}

/// The text that a tokenizer is tried on.
const TRIAL: &str = "A text, 1 of 2.";

impl Tokenizer {
    /// A token is a byte.
    pub const BYTES: Tokenizer = Tokenizer(TokenizerKind::Bytes);

    /// Reads a tokenizer.json for a model that has ids below `vocabulary`.
    ///
    /// # Errors
    /// When the file is no tokenizer, or when it knows ids that the model does not: it is another
    /// model's.
    pub fn read(path: &Path, vocabulary: usize) -> Result<Self, FormatError> {
        Self::parse(path, &overdrive_files::read(path, overdrive_files::TEXT)?, vocabulary)
    }

    /// The same from the bytes of a file; `path` is what errors call it.
    pub(crate) fn parse(path: &Path, bytes: &[u8], vocabulary: usize) -> Result<Self, FormatError> {
        let refused = |error: String| {
            FormatError::damaged(path, "the file", "a tokenizer of the `tokenizers` library", error)
        };
        let read = guarded(path, || tokenizers::Tokenizer::from_bytes(bytes)).map_err(refused)?;
        let tokenizer = read.map_err(|error| refused(error.to_string()))?;
        if let Some((token, id)) = largest(&tokenizer).filter(|(_, id)| *id as usize >= vocabulary)
        {
            let expected = format!("ids below {vocabulary}, the model's vocabulary");
            let error =
                FormatError::damaged(path, "vocabulary", expected, format!("{id} for `{token}`"));
            return Err(
                error.remedy("the tokenizer is of another model: fetch both from one place")
            );
        }
        // Some parts are looked at only when they are needed, which would be in the middle of
        // someone's work. A text that it has no tokens for is no fault of the file.
        let trial =
            || tokenizer.encode(TRIAL, true).and_then(|ids| tokenizer.decode(ids.get_ids(), true));
        guarded(path, trial).map_err(refused)?.ok();
        Ok(Self(TokenizerKind::File(Box::new(tokenizer), path.to_owned())))
    }

    /// The content of the tokenizer.json that it was read from; bytes were read from none.
    pub(crate) fn to_json(&self) -> Option<serde_json::Value> {
        let TokenizerKind::File(tokenizer, _) = &self.0 else { return None };
        let text = tokenizer.to_string(false).expect("a tokenizer that was read is plain data");
        Some(serde_json::from_str(&text).expect("a tokenizer is written as JSON"))
    }

    /// Writes it as a tokenizer.json.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, path: &Path) -> Result<(), FormatError> {
        let text = match &self.0 {
            TokenizerKind::Bytes => bytes::tokenizer().to_string(),
            TokenizerKind::File(tokenizer, _) => {
                tokenizer.to_string(false).expect("a tokenizer that was read is plain data")
            }
        };
        std::fs::write(path, text).map_err(FormatError::io(path, "write"))
    }

    /// The ids of a text, with the tokens that the model expects around it.
    ///
    /// # Errors
    /// When the tokenizer has no token for a part of it, in its words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match &self.0 {
            TokenizerKind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            TokenizerKind::File(tokenizer, path) => {
                let encoding = guarded(path, || tokenizer.encode(text, true))?;
                encoding
                    .map(|encoding| encoding.get_ids().to_vec())
                    .map_err(|error| error.to_string())
            }
        }
    }

    /// The ids of a part of a text, and how many of its bytes each stands for; these sum up to its
    /// length.
    ///
    /// # Errors
    /// As `encode`.
    pub fn tokens(&self, text: &str) -> Result<Vec<(u32, u32)>, String> {
        let TokenizerKind::File(tokenizer, path) = &self.0 else {
            return Ok(text.bytes().map(|b| (b.into(), 1)).collect());
        };
        let encoding =
            guarded(path, || tokenizer.encode(text, false))?.map_err(|error| error.to_string())?;
        // Text that no offset covers, as white space often, belongs to the token after it, and at
        // the end to the last.
        let (mut tokens, mut before) = (Vec::with_capacity(encoding.len()), 0);
        for (&id, &(_, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let end = before.max(end as u32);
            tokens.push((id, end - before));
            before = end;
        }
        if let Some((_, bytes)) = tokens.last_mut() {
            *bytes += text.len() as u32 - before;
        }
        Ok(tokens)
    }

    /// The same tokenizer for a text of any length. Its file may ask for a cut to a number of
    /// tokens, or for filling, which this one leaves out.
    #[must_use]
    pub fn for_long_texts(&self) -> Self {
        let TokenizerKind::File(tokenizer, path) = &self.0 else { return self.clone() };
        let mut whole = tokenizer.clone();
        whole.with_padding(None);
        whole.with_truncation(None).expect("no cut fits every tokenizer");
        Self(TokenizerKind::File(whole, path.clone()))
    }

    /// A checksum of all that decides its ids: two tokenizers that share it give the same tokens.
    pub fn digest(&self) -> String {
        let text = match &self.0 {
            TokenizerKind::Bytes => "bytes".to_owned(),
            TokenizerKind::File(tokenizer, _) => {
                tokenizer.to_string(false).expect("a tokenizer that was read is plain data")
            }
        };
        let mut digest = Digest::default();
        digest.add(text.as_bytes());
        digest.finish()
    }

    /// Its file, for messages; of bytes `bytes`.
    pub fn name(&self) -> String {
        match &self.0 {
            TokenizerKind::Bytes => "bytes".to_owned(),
            TokenizerKind::File(_, path) => path.display().to_string(),
        }
    }

    /// The id of a token by its text, as `<|endoftext|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.0 {
            TokenizerKind::Bytes => None,
            TokenizerKind::File(tokenizer, _) => tokenizer.token_to_id(token),
        }
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            TokenizerKind::Bytes => 1 << 8,
            TokenizerKind::File(tokenizer, _) => {
                largest(tokenizer).map_or(0, |(_, id)| id as usize + 1)
            }
        }
    }

    /// The text of ids, without special tokens. A character with a missing byte becomes `\u{FFFD}`.
    ///
    /// # Errors
    /// When the tokenizer does not know an id, in its words.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        match &self.0 {
            TokenizerKind::Bytes => {
                let bytes: Vec<u8> =
                    ids.iter().map(|&id| u8::try_from(id).unwrap_or(b'?')).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            TokenizerKind::File(tokenizer, path) => {
                guarded(path, || tokenizer.decode(ids, true))?.map_err(|error| error.to_string())
            }
        }
    }
}

/// The token of the largest id.
fn largest(tokenizer: &tokenizers::Tokenizer) -> Option<(String, u32)> {
    tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id)
}
