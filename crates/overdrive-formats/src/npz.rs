//! npz: a zip archive of npy arrays, as `numpy.savez` and `numpy.savez_compressed` write it.
//!
//! Archives are read entry by entry as the bytes come. A compressed array that claims to be huge
//! therefore fails when its bytes run out, and not when memory does. The checksums of the archive
//! are verified. Arrays are stored uncompressed.

use crate::{FormatError, Tensors, file, npy};
use std::fs::File;
use std::io::{BufWriter, Cursor, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Sizes from here on need zip64 fields.
const ZIP64: usize = u32::MAX as usize;

/// Reads every array of a file; names lose their `.npy`.
pub fn read(path: &Path) -> Result<Tensors, FormatError> {
    decode(path, &file::bytes(path)?)
}

/// Reads every array from the bytes of a file; `path` is what errors call it.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<Tensors, FormatError> {
    let unreadable = |e| FormatError::damaged(path, "archive", "a zip archive of npy arrays", e);
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(unreadable)?;
    if let Some(declared) =
        declared_entries(bytes).filter(|&n| usize::from(n) != archive.len() & 0xffff)
    {
        let found = format!("{declared} entries with {} names", archive.len());
        return Err(FormatError::damaged(path, "archive", "entries of different names", found));
    }
    let mut tensors = Tensors::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(unreadable)?;
        let entry_name = entry.name().map_err(unreadable)?.into_owned();
        let Some(name) = entry_name.strip_suffix(".npy").map(str::to_owned) else {
            let found = format!("`{entry_name}`");
            return Err(FormatError::damaged(path, "archive", "entries named `*.npy`", found));
        };
        let tensor = npy::decode(path, &name, &mut entry)?;
        // The checksum is compared when the entry ends, and bytes that nothing declared are a
        // fault.
        let rest = std::io::copy(&mut entry, &mut std::io::sink());
        match rest {
            Ok(0) => tensors.insert(name, tensor),
            Ok(n) => {
                return Err(FormatError::damaged(
                    path,
                    &name,
                    "the end of the array",
                    format!("{n} bytes more"),
                ));
            }
            Err(e) => {
                return Err(FormatError::damaged(path, &name, "an array with its checksum", e));
            }
        };
    }
    Ok(tensors)
}

/// Number of entries, modulo 65,536, in the archive's closing record: the crate keeps one entry of
/// each name.
fn declared_entries(bytes: &[u8]) -> Option<u16> {
    let at = bytes.windows(4).rposition(|window| window == b"PK\x05\x06")?;
    let count = bytes.get(at + 10..at + 12)?;
    Some(u16::from_le_bytes([count[0], count[1]]))
}

/// Writes tensors to a file, which appears whole or not at all.
pub fn write(path: &Path, tensors: &Tensors) -> Result<(), FormatError> {
    file::replace(path, |unfinished| {
        let file = File::create(unfinished).map_err(FormatError::io(path, "create"))?;
        let mut archive = ZipWriter::new(BufWriter::new(file));
        for (name, tensor) in tensors {
            let bytes = npy::encode(path, name, tensor)?;
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .large_file(bytes.len() >= ZIP64);
            archive
                .start_file(format!("{name}.npy"), options)
                .map_err(|e| FormatError::io(path, "write")(e.into()))?;
            archive.write_all(&bytes).map_err(FormatError::io(path, "write"))?;
        }
        let buffered = archive.finish().map_err(|e| FormatError::io(path, "write")(e.into()))?;
        buffered.into_inner().map_err(|e| FormatError::io(path, "write")(e.into_error()))?;
        Ok(())
    })
}
