//! config.json of Whisper.

use super::architecture::Architecture;
use super::facts::{Facts, ModelTask, NamedExtent};
use super::fields::{MAX_PLACES, activation, at_most, check_heads, layers};
use super::preprocessing;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::whisper::Whisper;
use overdrive_models::{Bias, Stack};
use std::path::Path;

pub(super) fn read(config: &Config, _: &str, _: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["d_model"])?;
    let activation = activation(config, &["activation_function"], "gelu")?;
    let stack = |[blocks, heads, hidden]: [&'static str; 3]| {
        let count = config.count(&[heads])?;
        check_heads(config, (heads, count), width)?;
        Ok::<_, FormatError>(Stack {
            width,
            layers: layers(config, &[blocks])?,
            heads: count,
            hidden: config.count(&[hidden])?,
            activation,
            eps: 1e-5,
            qkv_bias: [Bias::Learnt, Bias::None, Bias::Learnt],
        })
    };
    // `transformers` has these fields and does not look at them in this class.
    config.flag("scale_embedding", Otherwise::False)?;
    config.flag("use_weighted_layer_sum", Otherwise::False)?;
    config.find_count(&["num_hidden_layers"])?;
    Ok(Architecture::Whisper(Box::new(Whisper {
        vocabulary: config.count(&["vocab_size"])?,
        bins: at_most(config, &["num_mel_bins"], MAX_PLACES)?,
        positions: at_most(config, &["max_source_positions"], MAX_PLACES)?,
        context: config.count(&["max_target_positions"])?,
        encoder: stack(["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"])?,
        decoder: stack(["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"])?,
        tied: config.flag("tie_word_embeddings", Otherwise::True)?,
    })))
}

pub(super) fn facts(whisper: &Whisper) -> Facts {
    Facts {
        task: ModelTask::Other,
        extents: vec![NamedExtent::BATCH, NamedExtent::tokens(whisper.context)],
        vocabulary: Some(whisper.vocabulary),
        prefix: "model.",
        tokens: Some("model.decoder.embed_tokens.weight"),
        head: Some("proj_out"),
        tied: whisper.tied,
        buffers: &[],
        other_heads: &[],
        newer_names: &[],
    }
}

/// Notes for a user on its input.
pub(super) fn notes(whisper: &Whisper, folder: &Path) -> Result<Vec<String>, FormatError> {
    preprocessing::sound(folder, [whisper.bins, whisper.frames()])
}
