//! The archive that PyTorch writes since 1.6: `NAME/data.pkl`, and `NAME/data/KEY` for each
//! storage, stored without compression. Source: `torch/serialization.py`, `_save`.

use super::assemble::StorageBytes;
use super::pickle::{LARGEST_PICKLE, Pickle};
use crate::FormatError;
use bytes::Bytes;
use std::io::Cursor;
use std::path::Path;
use zip::{CompressionMethod, ZipArchive};

/// The pickle of an archive, and its storages.
pub(super) fn read(path: &Path, bytes: &Bytes) -> Result<(Pickle, StorageBytes), FormatError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        FormatError::damaged(path, "archive", "a zip archive of torch.save", error)
    };
    let mut archive = ZipArchive::new(Cursor::new(&bytes[..])).map_err(|e| unreadable(&e))?;
    let (mut pickle, mut order, mut stored) = (None, None, StorageBytes::new());
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|e| unreadable(&e))?;
        let name = entry.name().map_err(|e| unreadable(&e))?.into_owned();
        let Some((_, inside)) = name.split_once('/') else { continue };
        let is_storage = inside.strip_prefix("data/").filter(|key| !key.is_empty());
        if is_storage.is_none() && !matches!(inside, "data.pkl" | "byteorder") {
            continue;
        }
        if entry.compression() != CompressionMethod::Stored {
            let found = entry.compression().to_string();
            return Err(FormatError::damaged(path, &name, "an entry without compression", found));
        }
        let range = entry.data_start().zip(usize::try_from(entry.size()).ok());
        let range = range.and_then(|(start, size)| {
            let start = usize::try_from(start).ok()?;
            Some(start..start.checked_add(size).filter(|&end| end <= bytes.len())?)
        });
        let Some(range) = range else {
            let found = format!("{} bytes", entry.size());
            return Err(FormatError::damaged(path, &name, "an entry inside of the file", found));
        };
        // Reading to the end compares the checksum.
        let read = std::io::copy(&mut entry, &mut std::io::sink());
        read.map_err(|e| FormatError::damaged(path, &name, "bytes with their checksum", e))?;
        let content = bytes.slice(range);
        match is_storage {
            Some(key) => _ = stored.insert(key.to_owned(), content),
            None if inside == "byteorder" => order = Some(content),
            None => pickle = Some(content),
        }
    }
    if let Some(order) = order.filter(|order| &order[..] != b"little") {
        let found = String::from_utf8_lossy(&order[..order.len().min(16)]).into_owned();
        return Err(FormatError::damaged(path, "byteorder", "little", found)
            .remedy("save the model on a machine with the lowest byte first"));
    }
    let Some(pickle) = pickle else {
        let expected = "an entry `NAME/data.pkl`, as torch.save writes it";
        return Err(FormatError::damaged(path, "archive", expected, "none"));
    };
    if pickle.len() > LARGEST_PICKLE {
        let expected = format!("at most {LARGEST_PICKLE} bytes");
        return Err(FormatError::damaged(path, "data.pkl", expected, pickle.len()));
    }
    Ok((Pickle::read(path, &pickle)?, stored))
}
