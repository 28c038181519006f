//! Files of `torch.save` that hold a state dict: tensors by name, and nothing else.
//!
//! The format is a pickle, which is a program. It is never run: `pickle` understands the few
//! instructions that a state dict consists of, and the few names that occur in one; any other is an
//! error. Two layouts exist: a zip archive since PyTorch 1.6, and a stream before. Invariant:
//! memory is bounded by a multiple of the file's size.

mod archive;
mod assemble;
mod pickle;
mod stream;
mod value;

use crate::{FormatError, Tensors, file};
use bytes::Bytes;
use std::path::Path;

/// How an archive and a stream begin.
const ARCHIVE: &[u8] = b"PK\x03\x04";
const STREAM: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Reads every tensor of a file.
///
/// # Errors
/// When the file cannot be read, holds anything but tensors by name, or claims more than it has.
pub fn read(path: &Path) -> Result<Tensors, FormatError> {
    decode(path, file::bytes(path)?)
}

/// Reads every tensor from the bytes of a file; `path` is what errors call it.
///
/// # Errors
/// As `read`.
pub fn decode(path: &Path, bytes: impl Into<Bytes>) -> Result<Tensors, FormatError> {
    let bytes = bytes.into();
    let (pickle, stored) = if bytes.starts_with(ARCHIVE) {
        archive::read(path, &bytes)?
    } else if bytes.starts_with(STREAM) {
        stream::read(path, &bytes)?
    } else {
        let found = format!("a file that begins with {:02x?}", &bytes[..bytes.len().min(4)]);
        let expected = "a file of torch.save, an archive or a stream";
        return Err(FormatError::damaged(path, "the file", expected, found)
            .remedy("save the state dict with torch.save or, better, with safetensors"));
    };
    assemble::tensors((path, bytes.len()), &pickle, &stored)
}
