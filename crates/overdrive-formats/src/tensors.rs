//! Tensors by name, and one tensor of the bytes of a file.

use crate::FormatError;
use bytes::Bytes;
use overdrive_ir::{DType, Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

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
