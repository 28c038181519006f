//! Folders in Hugging Face's format: `config.json`, weights in safetensors or of `torch.save` (in
//! shards too), `tokenizer.json`.
//!
//! Each part is read by itself and says what is wrong with it by file and field. The code that
//! builds graphs interprets the fields for each architecture. Nothing is downloaded. Invariant: no
//! name in a file leads out of its folder.

mod checked;
mod config;
mod folder_weights;
mod tokenizer;
mod writer;

pub use checked::{checked, checksum};
pub use config::{Config, Otherwise};
pub use folder_weights::{FolderWeights, has_weights, read_weights};
pub use tokenizer::Tokenizer;
pub use writer::{CONTENTS, write, write_adapter};

use crate::FormatError;
use overdrive_files::{SETTINGS, read_text};
use std::path::Path;

/// Whether a folder means to be one of these, whatever else is wrong with it.
pub fn is_at(folder: &Path) -> bool {
    let text = read_text(&folder.join("config.json"), SETTINGS).unwrap_or_default();
    text.contains("\"model_type\"") || (has_weights(folder) && !text.contains("overdrive_model"))
}

/// The template of a model's conversations, if its folder has one.
///
/// # Errors
/// When a file that may hold it cannot be read.
pub fn chat_template(folder: &Path) -> Result<Option<String>, FormatError> {
    let (alone, settings) =
        (folder.join("chat_template.jinja"), folder.join("tokenizer_config.json"));
    if alone.exists() {
        return Ok(Some(read_text(&alone, SETTINGS)?));
    }
    if !settings.exists() {
        return Ok(None);
    }
    // Some folders list several by name, of which none is the one.
    let settings = Config::read(&settings)?.to_json();
    Ok(settings["chat_template"].as_str().map(str::to_owned))
}
