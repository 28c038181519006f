//! The weights of a folder: one file, or the shards that an index lists, of safetensors or else of
//! `torch.save`.
//!
//! Tensors share the bytes of their file and keep the type that they are stored in, so that memory
//! holds them once. Only floats of 64 bits become f32. Invariant: every tensor that an index
//! promises is there, and none comes from outside the folder.

use super::Config;
use crate::{Cuts, FormatError, Tensors, parts, pytorch, safetensors};
use overdrive_files::Digest;
use overdrive_ir::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The tensors of a folder, as they are stored.
#[derive(Debug, Default)]
pub struct FolderWeights {
    /// By name.
    pub tensors: Tensors,
    /// The types that floats are stored in.
    pub stored: BTreeSet<DType>,
    /// The file, or the index: what errors about names point to.
    pub path: PathBuf,
    /// Names, types and first bytes of all tensors, if only parts of them were kept.
    pub digest: Digest,
}

/// Names of the one file and of the index of shards, in the order in which they are looked for.
const FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Whether a folder has a file of weights, or an index of shards, whatever is wrong with it.
pub fn has_weights(folder: &Path) -> bool {
    let is_stored = |name: &&str| {
        folder.join(name).exists() || folder.join(format!("{name}.index.json")).exists()
    };
    FILES.iter().any(is_stored)
}

/// Reads the weights of a folder: `model.safetensors`, the shards of
/// `model.safetensors.index.json`, or `pytorch_model.bin` likewise. With `cuts`, only these parts
/// of the tensors are kept, and of safetensors only these are read.
///
/// # Errors
/// When there are none, or when a shard or a tensor that the index lists is missing.
pub fn read_weights(folder: &Path, cuts: Option<&Cuts<'_>>) -> Result<FolderWeights, FormatError> {
    for name in FILES {
        let (single, index) = (folder.join(name), folder.join(format!("{name}.index.json")));
        if single.exists() {
            let mut weights = FolderWeights { path: single.clone(), ..FolderWeights::default() };
            weights.take(&single, cuts)?;
            return Ok(weights);
        }
        if index.exists() {
            return read_shards(folder, index, cuts);
        }
    }
    let expected = FILES.map(|name| format!("{name} or {name}.index.json")).join(", ");
    let error = FormatError::damaged(folder, "weights", expected, "neither");
    let remedy = format!(
        "fetch the whole folder, or train new weights: overdrive train {} --from-scratch",
        folder.display()
    );
    Err(error.remedy(&remedy))
}

/// Reads the shards that an index lists.
fn read_shards(
    folder: &Path,
    index: PathBuf,
    cuts: Option<&Cuts<'_>>,
) -> Result<FolderWeights, FormatError> {
    let listed = Config::read(&index)?;
    let mut weights = FolderWeights { path: index, ..FolderWeights::default() };
    let map = listed.section(&["weight_map"])?.ok_or_else(|| {
        listed.wrong("weight_map", "an object from tensors to shards", "no such field")
    })?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in map.texts() {
        let shard =
            shard.ok_or_else(|| map.wrong(tensor, "the name of a shard", "something else"))?;
        let parts: Vec<Component<'_>> = Path::new(shard).components().collect();
        if !matches!(parts[..], [Component::Normal(name)] if name == shard) {
            let expected = "the plain name of a file in this folder";
            return Err(map.wrong(tensor, expected, &format!("`{shard}`")));
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
        let found = weights.take(&path, cuts)?;
        if let Some(missing) = tensors.iter().find(|name| !found.contains(**name)) {
            let expected = "this tensor, as the index says";
            return Err(FormatError::damaged(&path, missing, expected, "none of this name"));
        }
    }
    Ok(weights)
}

impl FolderWeights {
    /// Adds the tensors of a file, and returns their names there.
    fn take(
        &mut self,
        path: &Path,
        cuts: Option<&Cuts<'_>>,
    ) -> Result<BTreeSet<String>, FormatError> {
        let is_pickled = path.extension().is_some_and(|extension| extension == "bin");
        let (read, names) = match cuts {
            Some(cuts) if !is_pickled => safetensors::read_parts(path, cuts, &mut self.digest)?,
            _ => {
                let read = if is_pickled { pytorch::read(path)? } else { safetensors::read(path)? };
                let names = read.keys().cloned().collect();
                let kept = match cuts {
                    Some(cuts) => parts(read, cuts, &mut self.digest),
                    None => read,
                };
                (kept, names)
            }
        };
        for (name, tensor) in read {
            let dtype = tensor.ty().dtype;
            self.stored.extend(dtype.is_float().then_some(dtype));
            let kept = if dtype == DType::F64 { tensor.convert(DType::F32) } else { tensor };
            if self.tensors.insert(name.clone(), kept).is_some() {
                let expected = "every tensor in one shard";
                return Err(FormatError::damaged(
                    path,
                    &name,
                    expected,
                    "a second one of this name",
                ));
            }
        }
        Ok(names)
    }
}
