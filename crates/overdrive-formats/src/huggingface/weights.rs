//! The weights of a folder: one safetensors file, or the shards that an index lists.
//!
//! 16-bit floats are widened to f32 here, once, so that what is measured in f32 is f32 throughout; in which type they
//! were stored is said. What is no float (masks that older versions saved) stays as it is. Invariant: every tensor that an index promises is there, and none comes from outside the folder.

use super::Config;
use crate::{FormatError, Tensors, safetensors};
use half::slice::HalfFloatSliceExt;
use overdrive_ir::{DType, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The tensors of a folder; floats are f32.
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
/// When there are neither, when a shard or a tensor that the index lists is missing, or when a tensor is no float.
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
            let Some(wide) = widened(tensor) else {
                let error = FormatError::damaged(path, &name, "f32, f16 or bf16", dtype);
                return Err(error.remedy("save the model in one of these types"));
            };
            self.stored.extend(dtype.is_float().then_some(dtype));
            if self.tensors.insert(name.clone(), wide).is_some() {
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

/// A float of 16 or 32 bits as f32, exactly; what is no float as it is.
fn widened(tensor: Tensor) -> Option<Tensor> {
    let pairs = || tensor.bytes().chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let mut values = Vec::new();
    match tensor.ty().dtype {
        dtype if dtype == DType::F32 || !dtype.is_float() => return Some(tensor),
        DType::F16 => {
            let halves: Vec<half::f16> = pairs().map(half::f16::from_bits).collect();
            values.resize(halves.len(), 0.0);
            halves.convert_to_f32_slice(&mut values);
        }
        DType::BF16 => values.extend(pairs().map(|bits| f32::from_bits(u32::from(bits) << 16))),
        _ => return None,
    }
    let ty: TensorType = tensor.ty().with_dtype(DType::F32);
    Some(Tensor::from_f32(ty.shape, &values))
}
