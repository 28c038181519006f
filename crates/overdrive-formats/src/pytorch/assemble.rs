//! Tensors of the views of a pickle and the bytes of its storages.
//!
//! A view whose elements lie one behind the other shares the bytes of the file; any other is
//! copied. Since views may overlap, or repeat an element without end, all copies together are
//! bounded.

use super::pickle::Pickle;
use super::value::{PickleValue, Storage, View};
use crate::tensors::tensor;
use crate::{FormatError, Tensors};
use bytes::Bytes;
use overdrive_ir::TensorType;
use std::collections::BTreeMap;
use std::path::Path;

/// The bytes of storages by key.
pub(super) type StorageBytes = BTreeMap<String, Bytes>;

/// All tensors together may have this many times the bytes of the file, plus `BESIDE` bytes.
const TIMES: usize = 8;
const BESIDE: usize = 1 << 20;

/// The storages that tensors of a state dict look at, by key.
pub(super) fn storages<'p>(
    path: &Path,
    pickle: &'p Pickle,
) -> Result<BTreeMap<&'p str, &'p Storage>, FormatError> {
    let mut storages = BTreeMap::new();
    for (_, view) in views(path, pickle)? {
        let storage = &view.storage;
        if let Some(other) = storages.insert(storage.key.as_str(), storage)
            && other != storage
        {
            let (expected, found) = ("one type and one count", format!("{other:?}, {storage:?}"));
            return Err(FormatError::damaged(path, &storage.key, expected, found));
        }
    }
    Ok(storages)
}

/// The tensors of a state dict, of a file with so many bytes.
pub(super) fn tensors(
    (path, file_bytes): (&Path, usize),
    pickle: &Pickle,
    stored: &StorageBytes,
) -> Result<Tensors, FormatError> {
    for (key, storage) in storages(path, pickle)? {
        let size = storage.count.checked_mul(storage.dtype.bits() / 8);
        let found = stored.get(key).map(Bytes::len);
        if found.is_none() || found != size {
            let expected = format!("{} elements of {}", storage.count, storage.dtype);
            let found = found.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
            return Err(FormatError::damaged(path, &format!("storage {key}"), expected, found));
        }
    }
    let most = file_bytes.saturating_mul(TIMES).saturating_add(BESIDE);
    let (mut total, mut tensors) = (0usize, Tensors::new());
    for (name, view) in views(path, pickle)? {
        let bytes = checked_bytes(view).ok_or_else(|| {
            let count = view.storage.count;
            let expected = format!("elements of a storage of {count}");
            let View { offset, sizes, strides, .. } = view;
            let found = format!("sizes {sizes:?}, strides {strides:?} from {offset} on");
            FormatError::damaged(path, name, expected, found)
        })?;
        total = total.saturating_add(bytes);
        if total > most {
            let expected = format!("tensors of at most {most} bytes in a file of {file_bytes}");
            return Err(FormatError::damaged(path, name, expected, "more: elements repeat"));
        }
        let ty = TensorType::new(view.storage.dtype, view.sizes.clone());
        let content = gathered(view, &stored[&view.storage.key], bytes);
        if tensors.insert(name.to_owned(), tensor(path, name, ty, content)?).is_some() {
            return Err(FormatError::damaged(path, name, "one tensor", "a second of this name"));
        }
    }
    Ok(tensors)
}

/// The tensors of a state dict, with their names.
fn views<'p>(path: &Path, pickle: &'p Pickle) -> Result<Vec<(&'p str, &'p View)>, FormatError> {
    let refused = |place: &str, found: &str| {
        let error = FormatError::damaged(path, place, "a tensor", found);
        error.remedy("save `model.state_dict()`, tensors by name and nothing else")
    };
    let PickleValue::Dict(items) = pickle.root() else {
        return Err(refused("the whole", "something that is no dict"));
    };
    let mut views = Vec::with_capacity(items.len());
    for &(name, value) in items {
        match (pickle.value(name), pickle.value(value)) {
            (PickleValue::Text(name), PickleValue::View(view)) => views.push((name.as_str(), view)),
            (PickleValue::Text(name), PickleValue::Dict(_)) => return Err(refused(name, "a dict")),
            (PickleValue::Text(name), _) => return Err(refused(name, "something else")),
            _ => return Err(refused("a name", "something that is no text")),
        }
    }
    Ok(views)
}

/// Bytes of a tensor, if all its elements are inside of its storage.
fn checked_bytes(view: &View) -> Option<usize> {
    let count = view.sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
    if count > 0 {
        let reach = view.sizes.iter().zip(&view.strides);
        let last = reach.clone().try_fold(view.offset, |last, (&size, &stride)| {
            last.checked_add((size - 1).checked_mul(stride)?)
        })?;
        if last >= view.storage.count {
            return None;
        }
    }
    count.checked_mul(view.storage.dtype.bits() / 8)
}

/// The bytes of a tensor in row-major order.
fn gathered(view: &View, stored: &Bytes, bytes: usize) -> Bytes {
    let width = view.storage.dtype.bits() / 8;
    if bytes == 0 {
        return Bytes::new();
    }
    let mut expected = 1;
    let is_dense = view.sizes.iter().zip(&view.strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    });
    if is_dense {
        let start = view.offset * width;
        return stored.slice(start..start + bytes);
    }
    let mut content = Vec::with_capacity(bytes);
    let mut index = vec![0; view.sizes.len()];
    loop {
        let position: usize = index.iter().zip(&view.strides).map(|(i, stride)| i * stride).sum();
        let start = (view.offset + position) * width;
        content.extend_from_slice(&stored[start..start + width]);
        let Some(axis) = (0..index.len()).rev().find(|&axis| index[axis] + 1 < view.sizes[axis])
        else {
            return content.into();
        };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}
