//! GGUF, one file with a model's sizes, weights and tokenizer. It is read as what it was made from,
//! a model in Hugging Face's format, and written from one.
//!
//! Blocks of codes are decoded as ggml defines them. Some tensors are stored in another layout
//! there: rotary pairs of Llama, norms of Gemma, matrices of GPT-2. They are converted back, so
//! that one graph serves both formats. Source: docs/gguf.md of <https://github.com/ggml-org/ggml>.
//! Names and layouts are those that `convert_hf_to_gguf.py` of llama.cpp writes.

mod config;
mod encoded;
mod ggml_types;
mod k_blocks;
mod k_encoded;
mod keys;
mod layout;
mod model;
mod names;
mod rotary;
mod splits;
mod tokenizer;
mod tokens;
mod writer;

pub use encoded::GgufType;
pub use model::{GgufKin, GgufSizes, WrittenModel, write};

use crate::huggingface::{Config, FolderWeights, Tokenizer};
use crate::{FormatError, Tensors, file as whole};
use bytes::Bytes;
use std::path::Path;

/// The content of a file, in the terms of Hugging Face's format.
#[derive(Debug)]
pub struct Gguf {
    /// As a config.json says it.
    pub config: Config,
    /// Under the names that checkpoints have. Codes are decoded to f32.
    pub weights: FolderWeights,
    /// The tokenizer, if its kind is known here.
    pub tokenizer: Option<Tokenizer>,
    /// Notes on converted or omitted parts, in sentences.
    pub notes: Vec<String>,
}

/// Every tensor of a file's bytes under its own name and in its own layout; `path` is what errors
/// call it.
///
/// # Errors
/// When the bytes are no such file.
pub fn decode(path: &Path, bytes: impl Into<Bytes>) -> Result<Tensors, FormatError> {
    let file = layout::File::parse(path, &bytes.into())?;
    let read = |(name, stored)| Ok((String::clone(name), names::read(&file, name, stored)?));
    file.tensors.iter().map(read).collect()
}

/// Reads a model.
///
/// # Errors
/// When it is damaged, or of an architecture or with codes that are unknown here.
pub fn read(path: &Path) -> Result<Gguf, FormatError> {
    let file = layout::File::parse(path, &whole::bytes(path)?)?;
    if let Some(layout::HeaderValue::Integer(parts @ 2..)) = file.find("split.count") {
        let error = file.wrong("split.count", "a whole model in one file", parts);
        return Err(error.remedy("join the parts with `llama-gguf-split --merge`"));
    }
    let architecture = config::Architecture::of(&file)?;
    let config = config::config(&file, architecture)?;
    let vocabulary = config.count(&["vocab_size"])?;
    let (weights, mut notes) = names::weights(&file, architecture)?;
    let tokenizer = match tokenizer::json(&file)? {
        Ok(json) => Some(Tokenizer::parse(path, json.to_string().as_bytes(), vocabulary)?),
        Err(reason) => {
            notes.push(format!("no tokenizer: {reason}; put a tokenizer.json beside the file"));
            None
        }
    };
    let unknown = file.unasked();
    if !unknown.is_empty() {
        notes.push(format!("the file has keys that are not known here: {}", unknown.join(", ")));
    }
    Ok(Gguf { config, weights, tokenizer, notes })
}
