//! Tensors under the names and in the layouts of checkpoints.

use super::config::{Architecture, experts, heads};
use super::layout::{File, StoredTensor};
use crate::huggingface::FolderWeights;
use crate::tensors::tensor;
use crate::{FormatError, Tensors};
use overdrive_ir::{DType, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};

/// Names outside of blocks: GGUF's, those of Llama and its kin, those of GPT-2.
const WHOLE: [[&str; 3]; 4] = [
    ["token_embd", "model.embed_tokens", "transformer.wte"],
    ["position_embd", "", "transformer.wpe"],
    ["output_norm", "model.norm", "transformer.ln_f"],
    ["output", "lm_head", "lm_head"],
];

/// Names in blocks, likewise.
const BLOCK: [[&str; 3]; 14] = [
    ["attn_norm", "input_layernorm", "ln_1"],
    ["attn_q", "self_attn.q_proj", ""],
    ["attn_k", "self_attn.k_proj", ""],
    ["attn_v", "self_attn.v_proj", ""],
    ["attn_qkv", "self_attn.qkv_proj", "attn.c_attn"],
    ["attn_output", "self_attn.o_proj", "attn.c_proj"],
    ["attn_q_norm", "self_attn.q_norm", ""],
    ["attn_k_norm", "self_attn.k_norm", ""],
    ["ffn_norm", "post_attention_layernorm", "ln_2"],
    ["ffn_gate", "mlp.gate_proj", ""],
    ["ffn_up", "mlp.up_proj", "mlp.c_fc"],
    ["ffn_down", "mlp.down_proj", "mlp.c_proj"],
    ["post_attention_norm", "post_attention_layernorm", ""],
    ["post_ffw_norm", "post_feedforward_layernorm", ""],
];

/// Tensors that the config has taken.
const OF_CONFIG: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// All tensors of a file, and what a user should know of them.
pub(super) fn weights(
    file: &File,
    architecture: Architecture,
) -> Result<(FolderWeights, Vec<String>), FormatError> {
    let mut weights = FolderWeights { path: file.path.clone(), ..FolderWeights::default() };
    let experts = experts(file, architecture)?;
    let heads = heads(file, architecture)?.map(|heads| heads as usize);
    let mut kinds = BTreeSet::new();
    for (name, stored) in &file.tensors {
        if OF_CONFIG.contains(&name.as_str()) {
            continue;
        }
        let read = read(file, name, stored)?;
        match read.ty().dtype {
            DType::F32 if !matches!(stored.kind.name, "F32") => _ = kinds.insert(stored.kind.name),
            dtype => _ = weights.stored.insert(dtype),
        }
        for (own, tensor) in placed(file, (architecture, heads, experts.is_some()), (name, read))? {
            weights.tensors.insert(own, tensor);
        }
    }
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let note = format!("weights are stored as {} and decoded to f32", kinds.join(", "));
    Ok((weights, if kinds.is_empty() { vec![] } else { vec![note] }))
}

/// The name in files of a tensor of Llama or its kin, by its name in checkpoints.
pub(super) fn in_file(name: &str) -> Option<String> {
    let (stem, ending) = name.rsplit_once('.')?;
    let find = |table: &[[&'static str; 3]], stem: &str| {
        table.iter().find(|row| row[1] == stem).map(|row| row[0])
    };
    let own = match stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((block, part)) => format!("blk.{block}.{}", find(&BLOCK, part)?),
        None => find(&WHOLE, stem)?.to_owned(),
    };
    Some(format!("{own}.{ending}"))
}

/// The row of queries or keys in checkpoints that stands in a row of files of Llama: the inverse of
/// [`paired`].
pub(super) fn unpaired(row: usize, depth: usize) -> usize {
    let (head, channel) = (row / depth, row % depth);
    head * depth + channel / 2 + channel % 2 * (depth / 2)
}

/// A tensor as it is where it is a float of 32 or 16 bits, else decoded.
pub(super) fn read(file: &File, name: &str, stored: &StoredTensor) -> Result<Tensor, FormatError> {
    let dtype = match stored.kind.name {
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        _ => DType::F32,
    };
    let ty = TensorType::new(dtype, stored.sizes.clone());
    match stored.kind.name {
        "F32" | "F16" | "BF16" => tensor(&file.path, name, ty, stored.bytes.clone()),
        _ => Ok(Tensor::from_f32(ty.shape, &stored.kind.decoded(&stored.bytes))),
    }
}

/// A tensor under its name in checkpoints, brought into their layout; of stacked experts several.
fn placed(
    file: &File,
    (architecture, heads, has_experts): (Architecture, [usize; 2], bool),
    (name, tensor): (&str, Tensor),
) -> Result<Tensors, FormatError> {
    let column = if architecture == Architecture::Gpt2 { 2 } else { 1 };
    let unknown =
        || file.wrong(name, "a tensor of this architecture", "one that is not known here");
    let (stem, ending) = name.rsplit_once('.').ok_or_else(unknown)?;
    let find = |table: &[[&'static str; 3]], stem: &str| {
        let row = table.iter().find(|row| row[0] == stem);
        row.map(|row| row[column]).filter(|own| !own.is_empty())
    };
    let one = |own: String, tensor| Ok(BTreeMap::from([(format!("{own}.{ending}"), tensor)]));
    let Some((block, part)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
    else {
        let own = find(&WHOLE, stem).ok_or_else(unknown)?;
        return one(own.to_owned(), lowered(architecture, name, tensor));
    };
    if column == 2 {
        let own = find(&BLOCK, part).ok_or_else(unknown)?;
        // `Conv1D` keeps its matrices input-major.
        let turned = if tensor.ty().rank() == 2 { transposed(&tensor) } else { tensor };
        return one(format!("transformer.h.{block}.{own}"), turned);
    }
    let scope = format!("model.layers.{block}");
    if has_experts && let Some(expert) = part.strip_prefix("ffn_") {
        let is_llama = architecture == Architecture::Llama;
        let mixture = if is_llama { "block_sparse_moe" } else { "mlp" };
        let layer = match (expert, is_llama) {
            ("gate_inp", _) => return one(format!("{scope}.{mixture}.gate"), tensor),
            ("gate_exps", true) => Some("w1"),
            ("down_exps", true) => Some("w2"),
            ("up_exps", true) => Some("w3"),
            ("gate_exps", false) => Some("gate_proj"),
            ("down_exps", false) => Some("down_proj"),
            ("up_exps", false) => Some("up_proj"),
            _ => None,
        };
        if let Some(layer) = layer {
            let own = |i| format!("{scope}.{mixture}.experts.{i}.{layer}.{ending}");
            let parts = unstacked(&tensor).ok_or_else(unknown)?;
            return Ok(parts.into_iter().enumerate().map(|(i, part)| (own(i), part)).collect());
        }
    }
    let own = match (part, architecture) {
        ("ffn_norm", Architecture::Gemma2 | Architecture::Gemma3) => "pre_feedforward_layernorm",
        ("ffn_up", Architecture::Phi3) => "mlp.gate_up_proj",
        _ => find(&BLOCK, part).ok_or_else(unknown)?,
    };
    let count = if part == "attn_q" { heads[0] } else { heads[1] };
    let tensor = match (part, architecture) {
        ("attn_q" | "attn_k", Architecture::Llama) => paired(&tensor, count).ok_or_else(unknown)?,
        _ => lowered(architecture, name, tensor),
    };
    one(format!("{scope}.{own}"), tensor)
}

/// Norms of Gemma as they are learnt: files hold them with 1 added.
fn lowered(architecture: Architecture, name: &str, tensor: Tensor) -> Tensor {
    if !architecture.is_gemma() || !name.ends_with("norm.weight") {
        return tensor;
    }
    let weights: Vec<f32> = tensor.to_f32().iter().map(|weight| weight - 1.0).collect();
    Tensor::from_f32(tensor.ty().shape.clone(), &weights)
}

/// Rows of queries or keys in the order in which channel `i` turns with `i + D/2`: files of Llama
/// have the two beside each other.
fn paired(tensor: &Tensor, heads: usize) -> Option<Tensor> {
    let rows = *tensor.ty().sizes().first()?;
    let depth = rows.checked_div(heads).filter(|depth| depth * heads == rows)?;
    let half = depth / 2;
    if rows == 0 || depth % 2 == 1 {
        return None;
    }
    let from = |row: usize| {
        let (head, channel) = (row / depth, row % depth);
        head * depth + 2 * (channel % half) + channel / half
    };
    Some(tensor.rows(&(0..rows).map(from).collect::<Vec<_>>()))
}

fn transposed(tensor: &Tensor) -> Tensor {
    let (sizes, numbers) = (tensor.ty().sizes(), tensor.to_f32());
    let [rows, columns] = [sizes[0], sizes[1]];
    let turned: Vec<f32> =
        (0..rows * columns).map(|i| numbers[i % rows * columns + i / rows]).collect();
    Tensor::from_f32([columns, rows], &turned)
}

/// The matrices of a stack.
fn unstacked(tensor: &Tensor) -> Option<Vec<Tensor>> {
    let [count, rows, columns] = tensor.ty().sizes()[..] else { return None };
    let ty = tensor.ty().with_shape([rows, columns]);
    let part = |i: usize| {
        let bytes = tensor.bytes().len() / count;
        Tensor::from_bytes(ty.clone(), tensor.bytes()[i * bytes..][..bytes].to_vec()).ok()
    };
    (0..count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_files_are_those_of_checkpoints_again() {
        let rows: Vec<f32> = (0..24).map(|row| row as f32).collect();
        let tensor = Tensor::from_f32([24usize], &rows);
        let order: Vec<usize> = (0..24).map(|row| unpaired(row, 8)).collect();
        assert_eq!(order[..8], [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(paired(&tensor.rows(&order), 3), Some(tensor));
    }

    #[test]
    fn names_lead_to_files() {
        let name = |own: &str| in_file(own).unwrap_or_default();
        assert_eq!(name("model.embed_tokens.weight"), "token_embd.weight");
        assert_eq!(name("lm_head.weight"), "output.weight");
        assert_eq!(name("model.layers.3.self_attn.q_proj.bias"), "blk.3.attn_q.bias");
        let norm = "model.layers.3.post_attention_layernorm.weight";
        assert_eq!(name(norm), "blk.3.ffn_norm.weight");
        assert_eq!(in_file("model.layers.3.mlp.experts.0.up_proj.weight"), None);
    }
}
