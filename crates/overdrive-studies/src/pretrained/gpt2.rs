//! config.json of GPT-2.

use super::architecture::Architecture;
use super::facts::Facts;
use super::fields::{activation, check_flag, check_heads, layers};
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::gpt2::Gpt2;
use std::path::Path;

pub(super) fn read(config: &Config, _: &str, _: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["n_embd", "hidden_size"])?;
    let heads = config.count(&["n_head", "num_attention_heads"])?;
    check_heads(config, ("n_head", heads), width)?;
    check_flag(config, "scale_attn_weights", Otherwise::True)?;
    check_flag(config, "scale_attn_by_inverse_layer_idx", Otherwise::False)?;
    check_flag(config, "add_cross_attention", Otherwise::False)?;
    Ok(Architecture::Gpt2(Gpt2 {
        vocabulary: config.count(&["vocab_size"])?,
        context: config.count(&["n_positions", "max_position_embeddings", "n_ctx"])?,
        width,
        layers: layers(config, &["n_layer", "num_hidden_layers"])?,
        heads,
        hidden: config.find_count(&["n_inner"])?.unwrap_or(4 * width),
        activation: activation(config, &["activation_function"], "gelu_new")?,
        eps: config.find_positive(&["layer_norm_epsilon"])?.unwrap_or(1e-5),
        tied: config.flag("tie_word_embeddings", Otherwise::True)?,
    }))
}

pub(super) fn facts(gpt2: &Gpt2) -> Facts {
    Facts {
        prefix: "transformer.",
        tokens: Some("transformer.wte.weight"),
        tied: gpt2.tied,
        buffers: &[".attn.bias", ".attn.masked_bias"],
        ..Facts::decoder(gpt2.vocabulary, gpt2.context)
    }
}
