//! Folders in Hugging Face's format: `config.json`, weights in safetensors or of `torch.save` (in
//! shards too), `tokenizer.json`.
//!
//! Each part is read by itself and says what is wrong with it by file and field. The code that
//! builds graphs interprets the fields for each architecture. Nothing is downloaded. Invariant: no
//! name in a file leads out of its folder.

mod config;
mod folder_weights;
mod tokenizer;
mod writer;

pub use config::{Config, Otherwise};
pub use folder_weights::{FolderWeights, read_weights};
pub use tokenizer::Tokenizer;
pub use writer::{CONTENTS, write, write_adapter};

use std::path::Path;

/// Whether a folder means to be one of these, whatever else is wrong with it.
pub fn is_at(folder: &Path) -> bool {
    let text = overdrive_files::read_text(&folder.join("config.json"), overdrive_files::SETTINGS)
        .unwrap_or_default();
    let is_stored = |name: &&str| {
        folder.join(name).exists() || folder.join(format!("{name}.index.json")).exists()
    };
    text.contains("\"model_type\"")
        || (folder_weights::FILES.iter().any(is_stored) && !text.contains("overdrive_model"))
}
