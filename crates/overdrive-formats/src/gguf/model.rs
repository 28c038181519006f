//! Llama and its kin as a file: the keys of the header and the tensors, as
//! `convert_hf_to_gguf.py` of llama.cpp writes them.
//!
//! The inverse of [`config`](super::config) and [`names`](super::names) for three architectures.
//! Invariant: a weight that the file has no name for is an error.

use super::encoded::{F32, GgufType, MatrixPlace, TensorEncoder};
use super::layout::HeaderValue;
use super::names::{in_file, unpaired};
use super::tokens::{self, TokenRoles};
use super::writer::{self, WrittenTensor};
use crate::huggingface::Tokenizer;
use crate::{FormatError, Tensors};
use overdrive_ir::Tensor;
use std::num::NonZero;
use std::path::Path;

/// An architecture that is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum GgufKin {
    Llama,
    Qwen2,
    Qwen3,
}

impl GgufKin {
    /// That of a `model_type` of config.json.
    pub fn of(model_type: &str) -> Option<Self> {
        match model_type {
            "llama" | "mistral" => Some(Self::Llama),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// The sizes of a model.
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs)]
pub struct GgufSizes {
    pub vocabulary: usize,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub key_heads: usize,
    /// Width of a head.
    pub depth: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
}

/// A model to write.
#[derive(Debug)]
pub struct WrittenModel<'m> {
    /// Its architecture.
    pub kin: GgufKin,
    /// Its name.
    pub name: &'m str,
    /// Its sizes.
    pub sizes: GgufSizes,
    /// ε of the norms.
    pub eps: f64,
    /// Base of the rotary frequencies.
    pub base: f64,
    /// By what the frequencies of the pairs of channels are divided, if they are.
    pub factors: Option<Vec<f64>>,
    /// Its weights by their names in checkpoints.
    pub weights: &'m Tensors,
    /// Text to tokens.
    pub tokenizer: Option<&'m Tokenizer>,
    /// The tokens that begin and end a text by the model's settings.
    pub ends: [Option<u32>; 2],
    /// The template of its conversations.
    pub chat_template: Option<String>,
}

/// Writes a model to a file of this type, whose blocks so many threads make. Gives notes for the
/// user.
///
/// # Errors
/// When a weight has no name in such files or is larger than they hold, or the system refuses.
pub fn write(
    path: &Path,
    model: &WrittenModel<'_>,
    ty: GgufType,
    threads: NonZero<usize>,
) -> Result<Vec<String>, FormatError> {
    let mut notes = Vec::new();
    let mut keys = keys(model, ty);
    let tokenizer = model.tokenizer.and_then(Tokenizer::to_json);
    let around = model.tokenizer.and_then(|tokenizer| tokenizer.encode("").ok());
    let roles = TokenRoles {
        first: model.ends[0],
        last: model.ends[1],
        around: around.as_deref().unwrap_or_default(),
    };
    let found = match tokenizer {
        Some(json) => tokens::keys(&json, model.sizes.vocabulary, &roles),
        None => Err("the model has no tokenizer.json".to_owned()),
    };
    match found {
        Ok(found) => keys.extend(found),
        Err(reason) => {
            notes.push(format!(
                "the file has no tokenizer ({reason}): llama.cpp cannot read texts with it; \
                 Overdrive reads a tokenizer.json beside it"
            ));
            let key = "tokenizer.ggml.model".to_owned();
            keys.push((key, HeaderValue::Text("none".to_owned())));
        }
    }
    if let Some(template) = &model.chat_template {
        keys.push(("tokenizer.chat_template".to_owned(), HeaderValue::Text(template.clone())));
    }
    let factors = model.factors.as_ref().map(|factors| {
        let factors: Vec<f32> = factors.iter().map(|factor| *factor as f32).collect();
        Tensor::from_f32([factors.len()], &factors)
    });
    let mut tensors = Vec::new();
    if let Some(factors) = &factors {
        let name = "rope_freqs.weight".to_owned();
        tensors.push(WrittenTensor {
            name,
            encoder: &F32,
            tensor: factors,
            row_of: Box::new(|row| row),
        });
    }
    for (name, tensor) in model.weights {
        tensors.push(written(path, model, (name.as_str(), tensor), ty)?);
    }
    notes.extend(others(&tensors, ty));
    writer::write(path, &keys, &tensors, threads)?;
    Ok(notes)
}

/// A tensor with its type and the order of its rows.
fn written<'m>(
    path: &Path,
    model: &WrittenModel<'m>,
    (name, tensor): (&str, &'m Tensor),
    ty: GgufType,
) -> Result<WrittenTensor<'m>, FormatError> {
    let Some(own) = in_file(name) else {
        let expected = format!("a weight of GGUF's `{}`", model.kin.name());
        return Err(FormatError::damaged(path, name, expected, "one that it has no name for")
            .remedy("leave out -o NAME.gguf: a folder holds this model"));
    };
    // An embedding that no output layer stands beside is the output layer too.
    let is_tied = !model.weights.contains_key("lm_head.weight");
    let is_output = own == "output.weight" || (is_tied && own == "token_embd.weight");
    let place = if is_output { MatrixPlace::Output } else { MatrixPlace::Inside };
    let encoder: &'static TensorEncoder = match tensor.ty().sizes()[..] {
        [_, row] => ty.of_matrix(row, place),
        _ => &F32,
    };
    let turned = own.contains(".attn_q.") || own.contains(".attn_k.");
    let depth = model.sizes.depth;
    let row_of: Box<dyn Fn(usize) -> usize> = match turned && model.kin == GgufKin::Llama {
        true => Box::new(move |row| unpaired(row, depth)),
        false => Box::new(|row| row),
    };
    Ok(WrittenTensor { name: own, encoder, tensor, row_of })
}

/// A note on matrices that have no whole blocks of the type that was asked for.
fn others(tensors: &[WrittenTensor<'_>], ty: GgufType) -> Option<String> {
    let matrices = tensors.iter().filter(|written| written.tensor.ty().rank() == 2);
    let mut others = matrices.filter(|written| {
        let row = written.tensor.ty().sizes()[1];
        let meant = [MatrixPlace::Inside, MatrixPlace::Output]
            .map(|place| ty.of_matrix(row.next_multiple_of(256), place).name);
        !meant.contains(&written.encoder.name)
    });
    let first = others.next()?;
    Some(format!(
        "{} matrices, `{}` in {} for one, have rows without whole blocks of {}",
        1 + others.count(),
        first.name,
        first.encoder.name,
        ty.name()
    ))
}

/// The keys about the model.
fn keys(model: &WrittenModel<'_>, ty: GgufType) -> Vec<(String, HeaderValue)> {
    let WrittenModel { kin, sizes, .. } = model;
    let mut keys = vec![
        ("general.architecture".to_owned(), HeaderValue::Text(kin.name().to_owned())),
        ("general.type".to_owned(), HeaderValue::Text("model".to_owned())),
        ("general.name".to_owned(), HeaderValue::Text(model.name.to_owned())),
        ("general.file_type".to_owned(), HeaderValue::Integer(ty.number())),
        ("general.quantization_version".to_owned(), HeaderValue::Integer(2)),
    ];
    let mut set = |name: &str, value| keys.push((format!("{}.{name}", kin.name()), value));
    for (name, count) in [
        ("block_count", sizes.layers),
        ("vocab_size", sizes.vocabulary),
        ("context_length", sizes.context),
        ("embedding_length", sizes.width),
        ("feed_forward_length", sizes.hidden),
        ("attention.head_count", sizes.heads),
        ("attention.head_count_kv", sizes.key_heads),
        ("attention.key_length", sizes.depth),
        ("attention.value_length", sizes.depth),
        ("rope.dimension_count", sizes.depth),
    ] {
        set(name, HeaderValue::Integer(count as i128));
    }
    set("attention.layer_norm_rms_epsilon", HeaderValue::Float(model.eps));
    set("rope.freq_base", HeaderValue::Float(model.base));
    keys
}
