//! A folder that is another one with other weights: its config.json, one safetensors file, and
//! copies of the rest.

use crate::{FormatError, Tensors, safetensors};
use overdrive_files::{Contents, MANIFEST, UNBOUNDED};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Endings of files that hold weights.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "h5", "msgpack", "onnx", "gguf", "npz"];
const CONFIG: &str = "config.json";
const STATES: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The manifest of such a folder. Without one it is the user's: what was downloaded is not
/// replaced.
pub const CONTENTS: Contents =
    Contents { name: "a model in Hugging Face's format", writes: |_| false, is_ours: |_| false };

/// Makes the folder and writes `config` and `tensors` to it, with every file of the folder `from`,
/// if there is one, that holds no weights. Whoever replaces a model fills a
/// [`Place`](overdrive_files::Place) of [`CONTENTS`] with it.
///
/// # Errors
/// When a file of `from` cannot be read, or when the system refuses.
pub fn write(
    folder: &Path,
    from: Option<&Path>,
    config: &Value,
    tensors: &Tensors,
) -> Result<(), FormatError> {
    fs::create_dir_all(folder).map_err(FormatError::io(folder, "create"))?;
    if let Some(from) = from {
        copy(from, folder)?;
    }
    write_files([&folder.join(CONFIG), &folder.join(STATES)], config, tensors)
}

/// Makes the folder of an adapter in PEFT's format.
///
/// # Errors
/// When the system refuses.
pub fn write_adapter(folder: &Path, config: &Value, tensors: &Tensors) -> Result<(), FormatError> {
    fs::create_dir_all(folder).map_err(FormatError::io(folder, "create"))?;
    let files = ["adapter_config.json", "adapter_model.safetensors"].map(|name| folder.join(name));
    write_files([&files[0], &files[1]], config, tensors)
}

fn write_files(
    [path, states]: [&Path; 2],
    config: &Value,
    tensors: &Tensors,
) -> Result<(), FormatError> {
    let text = serde_json::to_string_pretty(config).expect("a config is plain data") + "\n";
    fs::write(path, text).map_err(FormatError::io(path, "write"))?;
    // Without the mark of its layout older versions of `transformers` refuse a file.
    let mark = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::write_described(states, tensors, mark)
}

/// Copies the files of a folder, and of those in it, that hold no weights and are not hidden.
fn copy(from: &Path, to: &Path) -> Result<(), FormatError> {
    for entry in fs::read_dir(from).map_err(FormatError::io(from, "read"))? {
        let entry = entry.map_err(FormatError::io(from, "read"))?;
        let (path, name) = (entry.path(), entry.file_name());
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let skipped = [CONFIG, INDEX, MANIFEST].iter().any(|known| name == *known)
            || name.to_string_lossy().starts_with('.')
            || WEIGHTS.contains(&extension);
        let target = to.join(&name);
        // Followed: a cache of downloads is made of links.
        let kind = fs::metadata(&path).map_err(FormatError::io(&path, "read"))?.file_type();
        if skipped {
            continue;
        } else if kind.is_file() {
            copy_file(&path, &target)?;
        } else if path.join(CONFIG).exists() {
            // A module of a sentence encoder.
            fs::create_dir_all(&target).map_err(FormatError::io(&target, "create"))?;
            copy_module(&path, &target)?;
        }
    }
    Ok(())
}

/// A module's settings.
fn copy_module(from: &Path, to: &Path) -> Result<(), FormatError> {
    copy_file(&from.join(CONFIG), &to.join(CONFIG))
}

fn copy_file(from: &Path, to: &Path) -> Result<(), FormatError> {
    let bytes = overdrive_files::read(from, UNBOUNDED)?;
    fs::write(to, bytes).map_err(FormatError::io(to, "write"))
}
