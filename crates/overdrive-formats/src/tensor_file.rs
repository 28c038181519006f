//! A file of tensors, in whichever format its extension says.

use crate::{FormatError, Tensors, npz, safetensors};
use std::path::Path;

enum Format {
    Safetensors,
    Npz,
}

fn format(path: &Path) -> Result<Format, FormatError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => Ok(Format::Safetensors),
        Some("npz") => Ok(Format::Npz),
        other => {
            let found = other.map_or("none".to_owned(), |e| format!("`.{e}`"));
            let error = FormatError::damaged(path, "extension", "`.safetensors` or `.npz`", found);
            Err(error.remedy("convert the file or rename it to what it is"))
        }
    }
}

/// Errs unless the name of a file ends as one of tensors does.
///
/// # Errors
/// With what it must end with.
pub fn check_name(path: &Path) -> Result<(), FormatError> {
    format(path).map(|_| ())
}

/// Reads every tensor of a `.safetensors` or `.npz` file.
pub fn read(path: &Path) -> Result<Tensors, FormatError> {
    let _about = overdrive_files::about(path);
    match format(path)? {
        Format::Safetensors => safetensors::read(path),
        Format::Npz => npz::read(path),
    }
}

/// Writes tensors to a `.safetensors` or `.npz` file, which appears whole or not at all.
pub fn write(path: &Path, tensors: &Tensors) -> Result<(), FormatError> {
    match format(path)? {
        Format::Safetensors => safetensors::write(path, tensors),
        Format::Npz => npz::write(path, tensors),
    }
}
