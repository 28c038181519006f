//! The header's keys as the fields of a config.json.

use super::keys::Keys;
use super::layout::{File, HeaderValue};
use super::rotary;
use crate::FormatError;
use crate::huggingface::Config;
use serde_json::{Map, Value as Json};

/// An architecture of GGUF that is known here.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(super) enum Architecture {
    Gemma,
    Gemma2,
    Gemma3,
    Gpt2,
    Llama,
    Phi3,
    Qwen2,
    Qwen3,
    Qwen3Moe,
}

use Architecture::{Gemma, Gemma2, Gemma3, Gpt2, Llama, Phi3, Qwen2, Qwen3, Qwen3Moe};

/// Names in files, and the `model_type` of each.
const KNOWN: [(&str, Architecture, &str); 9] = [
    ("gemma", Gemma, "gemma"),
    ("gemma2", Gemma2, "gemma2"),
    ("gemma3", Gemma3, "gemma3_text"),
    ("gpt2", Gpt2, "gpt2"),
    ("llama", Llama, "llama"),
    ("phi3", Phi3, "phi3"),
    ("qwen2", Qwen2, "qwen2"),
    ("qwen3", Qwen3, "qwen3"),
    ("qwen3moe", Qwen3Moe, "qwen3_moe"),
];

impl Architecture {
    pub(super) fn of(file: &File) -> Result<Self, FormatError> {
        const KEY: &str = "general.architecture";
        let known = || format!("one of {}", KNOWN.map(|(name, ..)| name).join(", "));
        match file.find(KEY) {
            Some(HeaderValue::Text(name)) => {
                let found = KNOWN.iter().find(|known| known.0 == name);
                found.map(|known| known.1).ok_or_else(|| file.wrong(KEY, known(), name))
            }
            _ => Err(file.wrong(KEY, known(), "none")),
        }
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Gemma | Gemma2 | Gemma3)
    }

    fn row(self) -> &'static (&'static str, Architecture, &'static str) {
        KNOWN.iter().find(|known| known.1 == self).expect("every architecture has a row")
    }
}

/// Number of experts of a block; `None` if it has one plain layer.
pub(super) fn experts(file: &File, architecture: Architecture) -> Result<Option<u64>, FormatError> {
    let keys = Keys { file, prefix: architecture.row().0 };
    Ok(keys.count("expert_count")?.filter(|&count| count > 0))
}

/// Heads of queries and of keys.
pub(super) fn heads(file: &File, architecture: Architecture) -> Result<[u64; 2], FormatError> {
    let keys = Keys { file, prefix: architecture.row().0 };
    let heads = keys.needed("attention.head_count")?;
    Ok([heads, keys.count("attention.head_count_kv")?.unwrap_or(heads)])
}

/// The config.json of a model that computes the same.
pub(super) fn config(file: &File, architecture: Architecture) -> Result<Config, FormatError> {
    let (prefix, _, model_type) = *architecture.row();
    let keys = Keys { file, prefix };
    let Some(table) = file.tensors.get("token_embd.weight").filter(|table| table.sizes.len() == 2)
    else {
        return Err(file.wrong("token_embd.weight", "a matrix", "none"));
    };
    let mut fields = Map::new();
    let mut set = |name: &str, value: Json| _ = fields.insert(name.to_owned(), value);
    let tied = !file.tensors.contains_key("output.weight");
    // Rows of the table count; the key stands beside them for files without tokens.
    keys.count("vocab_size")?;
    set("vocab_size", table.sizes[0].into());
    set("tie_word_embeddings", tied.into());
    let context = keys.needed("context_length")?;
    let [heads, key_heads] = self::heads(file, architecture)?;
    let width = keys.needed("embedding_length")?;
    let layers = keys.needed("block_count")?;
    if architecture == Gpt2 {
        set("model_type", model_type.into());
        set("n_positions", context.into());
        set("n_embd", width.into());
        set("n_layer", layers.into());
        set("n_head", heads.into());
        set("n_inner", keys.needed("feed_forward_length")?.into());
        set("layer_norm_epsilon", keys.positive("attention.layer_norm_epsilon")?.into());
        return finished(file, fields);
    }
    let experts = experts(file, architecture)?;
    let is_mixtral = experts.is_some() && architecture == Llama;
    set("model_type", if is_mixtral { "mixtral" } else { model_type }.into());
    set("max_position_embeddings", context.into());
    set("hidden_size", width.into());
    set("num_hidden_layers", layers.into());
    set("num_attention_heads", heads.into());
    set("num_key_value_heads", key_heads.into());
    set("intermediate_size", keys.needed("feed_forward_length")?.into());
    set("rms_norm_eps", keys.positive("attention.layer_norm_rms_epsilon")?.into());
    let depth = keys.count("attention.key_length")?.or(width.checked_div(heads)).unwrap_or(0);
    if let Some(other) = keys.count("attention.value_length")?.filter(|&other| other != depth) {
        let place = format!("{prefix}.attention.value_length");
        return Err(file.wrong(&place, format!("that of keys, {depth}"), other));
    }
    set("head_dim", depth.into());
    let has = |name: &str| file.tensors.contains_key(name);
    if architecture != Qwen2 && has("blk.0.attn_q.bias") {
        set("attention_bias", true.into());
    }
    if architecture == Llama && has("blk.0.ffn_up.bias") {
        set("mlp_bias", true.into());
    }
    if let Some(count) = experts {
        set("num_local_experts", count.into());
        set("num_experts_per_tok", keys.needed("expert_used_count")?.into());
    }
    if architecture == Qwen3Moe {
        // ggml sums the weights of the chosen ones to 1.
        set("norm_topk_prob", true.into());
        set("moe_intermediate_size", keys.needed("expert_feed_forward_length")?.into());
    }
    if matches!(architecture, Gemma2 | Gemma3 | Phi3) {
        let window = keys.count("attention.sliding_window")?.filter(|&window| window > 0);
        set("sliding_window", window.into());
    }
    if matches!(architecture, Gemma2 | Gemma3) {
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            set(name, keys.find_positive(name)?.into());
        }
        // No key says it; ggml knows the largest model of each version by its blocks.
        let is_largest = layers == if architecture == Gemma2 { 46 } else { 62 };
        let scalar = if is_largest { width / heads.max(1) } else { depth };
        set("query_pre_attn_scalar", scalar.into());
    }
    set("rope_theta", keys.find_positive("rope.freq_base")?.unwrap_or(rotary::BASE).into());
    if architecture == Gemma3 {
        let window = keys.find_positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
        set("rope_local_base_freq", window.into());
    }
    let turned = keys.count("rope.dimension_count")?.unwrap_or(depth);
    if turned != depth && architecture != Phi3 {
        let place = format!("{prefix}.rope.dimension_count");
        return Err(file.wrong(&place, format!("all {depth} channels of a head"), turned));
    }
    if turned != depth {
        set("partial_rotary_factor", (turned as f64 / depth as f64).into());
    }
    if let Some(scaling) = rotary::scaling(&keys, context)? {
        set("rope_scaling", scaling);
    }
    finished(file, fields)
}

/// Adds the fields about texts, and returns all fields as a config.
fn finished(file: &File, mut fields: Map<String, Json>) -> Result<Config, FormatError> {
    for (key, field) in [
        ("tokenizer.ggml.eos_token_id", "eos_token_id"),
        ("tokenizer.ggml.bos_token_id", "bos_token_id"),
    ] {
        if let Some(HeaderValue::Integer(id)) = file.find(key) {
            fields.insert(field.to_owned(), (*id as u64).into());
        }
    }
    Config::parse(&file.path, &Json::Object(fields).to_string())
}
