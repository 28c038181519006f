//! Tensors by name, in whichever format the file's extension says.

use crate::{FormatError, npz, safetensors};
use bytes::Bytes;
use overdrive_ir::{DType, Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

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

/// A tensor of bytes from a file, whose type must be addressable and fit them.
pub(crate) fn tensor(
    path: &Path,
    name: &str,
    ty: TensorType,
    bytes: impl Into<Bytes>,
) -> Result<Tensor, FormatError> {
    let bytes = bytes.into();
    if !ty.is_addressable() || ty.bytes() != bytes.len() {
        return Err(FormatError::damaged(
            path,
            name,
            format!("the bytes of {ty}"),
            format!("{} bytes", bytes.len()),
        ));
    }
    let bytes = match ty.dtype {
        // Any byte but 0 is true to NumPy and PyTorch; ours are 0 and 1.
        DType::Bool if bytes.iter().any(|b| *b > 1) => {
            bytes.iter().map(|b| u8::from(*b != 0)).collect()
        }
        _ => bytes,
    };
    Ok(Tensor::sharing(ty, bytes).expect("the length was checked"))
}
