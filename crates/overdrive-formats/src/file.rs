//! Files of a format: read into memory, replaced whole.
//!
//! Files are read and not mapped, because another process may change a mapped file. If it cuts the
//! file short, a signal ends this process. If it rewrites the file, the weights of a running model
//! change. Tensors share the bytes, so that there is one copy.

use crate::FormatError;
use bytes::Bytes;
use overdrive_files::{Existing, Place, PlaceRequest, UNBOUNDED};
use std::path::Path;

/// The bytes of a file, for tensors that share them.
pub(crate) fn bytes(path: &Path) -> Result<Bytes, FormatError> {
    Ok(overdrive_files::read(path, UNBOUNDED)?.into())
}

/// Has `write` make a file and puts it in the place of `path`, so that nobody sees half a file.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let request = PlaceRequest { path, option: "", existing: Existing::Replace, inputs: &[] };
    Place::file(request)?.fill(write)
}
