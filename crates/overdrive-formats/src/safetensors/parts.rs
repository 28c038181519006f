//! The parts of tensors that a rank wants of a file.

use super::OpenedSafetensors;
use crate::cut::{NOTED, note};
use crate::tensors::tensor;
use crate::{Cut, Cuts, FormatError, Tensors};
use overdrive_files::{Digest, FileError};
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the parts of tensors that `cuts` wants, and of each tensor the first bytes, which `digest`
/// takes in. Returns the names of all tensors too.
///
/// # Errors
/// As [`OpenedSafetensors::open`], when memory has no room, or the system refuses.
pub fn read_parts(
    path: &Path,
    cuts: &Cuts<'_>,
    digest: &mut Digest,
) -> Result<(Tensors, BTreeSet<String>), FormatError> {
    let file = OpenedSafetensors::open(path)?;
    let mut tensors = Tensors::new();
    for (name, ty) in file.types() {
        let size = ty.bytes();
        let mut noted = vec![0; size.min(NOTED)];
        file.read(name, 0, &mut noted)?;
        note(digest, (name, ty), &noted);
        let whole = || Cut { name: name.to_owned(), start: vec![0; ty.rank()], sizes: ty.sizes() };
        for cut in cuts(name, ty).unwrap_or_else(|| vec![whole()]) {
            let part = cut.ty(ty);
            let mut bytes = vec![];
            let room = bytes.try_reserve_exact(part.bytes());
            let no_memory =
                |_| FileError::NoMemory { path: path.to_owned(), bytes: part.bytes() as u64 };
            room.map_err(no_memory)?;
            let mut run = |at, length| {
                let end = bytes.len();
                bytes.resize(end + length, 0);
                file.read(name, at, &mut bytes[end..])
            };
            match cut == whole() {
                // Its elements may be parts of bytes.
                true => run(0, size)?,
                false => cut.copy(ty, &mut run)?,
            }
            tensors.insert(cut.name, tensor(path, name, part, bytes)?);
        }
    }
    Ok((tensors, file.types().map(|(name, _)| name.to_owned()).collect()))
}
