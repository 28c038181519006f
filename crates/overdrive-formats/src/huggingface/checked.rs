//! Whether the files of a folder are as they were written, and whether two models are the same.

use super::{CONTENTS, Config};
use crate::cut::note_tensor;
use crate::{FormatError, Tensors};
use overdrive_files::{Digest, FolderCheck};
use std::path::Path;

/// The result of `read`. Meanwhile the files of a folder that we wrote are compared with its list.
/// `part` is this reader, from 0, and the number of readers, which share out the checksums.
///
/// # Errors
/// When a listed file is missing or is not as it was written.
pub fn checked<T>(
    folder: &Path,
    part: [usize; 2],
    read: impl FnOnce() -> T,
) -> Result<T, FormatError> {
    Ok(FolderCheck { folder, contents: CONTENTS, part }.beside(read)?)
}

/// A checksum of a config, and of name, type and first bytes of each weight. It costs no more for a
/// large model than for a small one.
pub fn checksum(config: &Config, weights: &Tensors) -> String {
    let mut digest = Digest::default();
    weights.iter().for_each(|(name, tensor)| note_tensor(&mut digest, name, tensor));
    digest.add(config.to_json().to_string().as_bytes());
    digest.finish()
}
