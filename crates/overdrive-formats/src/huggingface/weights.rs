//! The weights of a folder: one safetensors file, or the shards that an index lists.
//!
//! Tensors share the bytes of their file and keep the type that they are stored in, so that memory holds them once.
//! Invariant: every tensor that an index promises is there, and none comes from outside the folder.

use super::Config;
use crate::{FormatError, Tensors, safetensors};
use overdrive_ir::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The tensors of a folder, as they are stored.
#[derive(Debug, Default)]
pub struct Weights {
    /// By name.
    pub tensors: Tensors,
    /// The types that floats are stored in.
    pub stored: BTreeSet<DType>,
    /// The file, or the index: what errors about names point to.
    pub path: PathBuf,
}

/// Reads `model.safetensors`, or the shards of `model.safetensors.index.json`.
///
/// # Errors
/// When there are neither, or when a shard or a tensor that the index lists is missing.
pub fn read_weights(folder: &Path) -> Result<Weights, FormatError> {
    let single = folder.join("model.safetensors");
    let index = folder.join("model.safetensors.index.json");
    if single.exists() || !index.exists() {
        if !single.exists() {
            let other = ["pytorch_model.bin", "pytorch_model.bin.index.json"]
                .iter()
                .find(|name| folder.join(name).exists());
            let found = other
                .map_or("neither".to_owned(), |name| format!("`{name}`, which is a program and not data"));
            let expected = "model.safetensors or model.safetensors.index.json";
            let error = FormatError::damaged(folder, "weights", expected, found);
            return Err(error.remedy("save the model with safetensors"));
        }
        let mut weights = Weights { path: single.clone(), ..Weights::default() };
        weights.take(&single)?;
        return Ok(weights);
    }
    let mut weights = Weights { path: index.clone(), ..Weights::default() };
    let listed = Config::read(&index)?;
    let map = listed.section(&["weight_map"])?;
    let map =
        map.ok_or_else(|| listed.wrong("weight_map", "an object from tensors to shards", "no such field"))?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in map.texts() {
        let shard = shard.ok_or_else(|| map.wrong(tensor, "the name of a shard", "something else"))?;
        let parts: Vec<Component<'_>> = Path::new(shard).components().collect();
        if !matches!(parts[..], [Component::Normal(name)] if name == shard) {
            return Err(map.wrong(tensor, "the plain name of a file in this folder", &format!("`{shard}`")));
        }
        shards.entry(shard).or_default().push(tensor);
    }
    for (shard, tensors) in shards {
        let path = folder.join(shard);
        if !path.exists() {
            let expected = format!("the shard with {} of the tensors", tensors.len());
            let error = FormatError::damaged(&path, "weights", expected, "no such file");
            return Err(error.remedy("fetch the whole folder again"));
        }
        weights.take(&path)?;
        if let Some(missing) = tensors.iter().find(|name| !weights.tensors.contains_key(**name)) {
            return Err(FormatError::damaged(
                &path,
                missing,
                "this tensor, as the index says",
                "none of this name",
            ));
        }
    }
    Ok(weights)
}

impl Weights {
    /// Adds the tensors of a file.
    fn take(&mut self, path: &Path) -> Result<(), FormatError> {
        for (name, tensor) in safetensors::read(path)? {
            let dtype = tensor.ty().dtype;
            self.stored.extend(dtype.is_float().then_some(dtype));
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(FormatError::damaged(
                    path,
                    &name,
                    "every tensor in one shard",
                    "a second one of this name",
                ));
            }
        }
        Ok(())
    }
}
