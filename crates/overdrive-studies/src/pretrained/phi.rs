//! config.json of Phi, versions 1 to 2.

use super::architecture::Architecture;
use super::facts::Facts;
use super::fields::{activation, check_heads, check_key_heads, layers};
use super::rotary::{Positions, rotary};
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::phi::Phi;
use std::path::Path;

pub(super) fn read(config: &Config, _: &str, _: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    check_heads(config, ("num_attention_heads", heads), width)?;
    let depth = width / heads;
    if let Some(other) = config.find_count(&["head_dim"])?.filter(|&other| other != depth) {
        return Err(config.wrong("head_dim", &depth.to_string(), &other.to_string()));
    }
    let key_heads = config.find_count(&["num_key_value_heads"])?.unwrap_or(heads);
    check_key_heads(config, heads, key_heads)?;
    let longest = config.find_count(&["max_position_embeddings"])?.unwrap_or(2048);
    let positions = Positions { depth, longest, base: 10_000.0, part: Some(0.5) };
    let (rotary, context) = rotary(config, positions)?;
    Ok(Architecture::Phi(Phi {
        vocabulary: config.count(&["vocab_size"])?,
        context,
        width,
        layers: layers(config, &["num_hidden_layers"])?,
        heads,
        key_heads,
        hidden: config.count(&["intermediate_size"])?,
        activation: activation(config, &["hidden_act"], "gelu_new")?,
        eps: config.find_positive(&["layer_norm_eps"])?.unwrap_or(1e-5),
        rotary,
        qk_norm: config.flag("qk_layernorm", Otherwise::False)?,
        tied: config.flag("tie_word_embeddings", Otherwise::False)?,
    }))
}

pub(super) fn facts(phi: &Phi) -> Facts {
    Facts { tied: phi.tied, ..Facts::decoder(phi.vocabulary, phi.context) }
}
