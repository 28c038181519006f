//! The stream that PyTorch wrote before 1.6. Source: `torch/serialization.py`, `_legacy_save`.
//!
//! First come pickles of a magic number, a version, facts about the machine, the state dict and a
//! list of keys. The storages follow in the order of the keys, each with its count in front.

use super::assemble::{StorageBytes, storages};
use super::pickle::{LARGEST_PICKLE, Pickle};
use super::value::PickleValue;
use crate::FormatError;
use bytes::Bytes;
use std::path::Path;

/// The version of the stream.
const VERSION: i64 = 1001;

/// Bytes of the count in front of a storage.
const COUNT: usize = 8;

/// The state dict of a stream, and its storages.
pub(super) fn read(path: &Path, bytes: &Bytes) -> Result<(Pickle, StorageBytes), FormatError> {
    let mut at = 0;
    let mut next = || {
        let end = bytes.len().min(at + LARGEST_PICKLE);
        let pickle = Pickle::read(path, &bytes[at..end])?;
        at += pickle.end;
        Ok::<_, FormatError>(pickle)
    };
    let [_magic, version, machine, dict, keys] = [next()?, next()?, next()?, next()?, next()?];
    let wrong = |place: &str, expected: &str, found: &str| {
        Err(FormatError::damaged(path, place, expected, found))
    };
    if !matches!(version.root(), PickleValue::Number(VERSION)) {
        return wrong("version", "1001", "another");
    }
    if !is_little_endian(&machine) {
        return wrong("byte order", "the lowest byte first", "another");
    }
    let PickleValue::List(keys_of) = keys.root() else {
        return wrong("keys", "a list", "something else");
    };
    let declared = storages(path, &dict)?;
    let mut stored = StorageBytes::new();
    for &key in keys_of {
        let PickleValue::Text(key) = keys.value(key) else {
            return wrong("keys", "a list of texts", "something else");
        };
        let Some(storage) = declared.get(key.as_str()) else {
            return wrong("keys", "keys of storages that tensors look at", key);
        };
        let size = storage.count.checked_mul(storage.dtype.bits() / 8);
        let counted = bytes.get(at..).and_then(|rest| rest.first_chunk::<COUNT>());
        let is_counted =
            counted.map(|count| u64::from_le_bytes(*count)) == Some(storage.count as u64);
        let end = size.and_then(|size| (at + COUNT).checked_add(size));
        let Some(end) = end.filter(|&end| is_counted && end <= bytes.len()) else {
            let expected = format!("{} elements of {}", storage.count, storage.dtype);
            return wrong(&format!("storage {key}"), &expected, "another count, or the end");
        };
        stored.insert(key.clone(), bytes.slice(at + COUNT..end));
        at = end;
    }
    Ok((dict, stored))
}

/// Whether the facts about the machine say so.
fn is_little_endian(machine: &Pickle) -> bool {
    let PickleValue::Dict(facts) = machine.root() else { return false };
    facts.iter().any(|&(name, value)| {
        matches!(machine.value(name), PickleValue::Text(name) if name == "little_endian")
            && matches!(machine.value(value), PickleValue::Bool(true))
    })
}
