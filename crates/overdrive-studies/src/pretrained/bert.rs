//! config.json of BERT, and what modules.json of a sentence encoder makes of it.

use super::architecture::Architecture;
use super::fields::{activation, check_flag, check_heads, layers};
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::bert::{Bert, Pooling};
use std::path::{Component, Path};

pub(super) fn bert(config: &Config, _: &str, folder: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    check_heads(config, ("num_attention_heads", heads), width)?;
    check_flag(config, "is_decoder", Otherwise::False)?;
    check_flag(config, "add_cross_attention", Otherwise::False)?;
    let positions = config.find_text(&["position_embedding_type"])?.unwrap_or("absolute");
    if positions != "absolute" {
        return Err(config.wrong("position_embedding_type", "absolute", &format!("`{positions}`")));
    }
    let (pooling, normalised) = pooling(folder)?;
    Ok(Architecture::Bert(Bert {
        vocabulary: config.count(&["vocab_size"])?,
        context: config.count(&["max_position_embeddings"])?,
        segments: config.find_count(&["type_vocab_size"])?.unwrap_or(2),
        width,
        layers: layers(config, &["num_hidden_layers"])?,
        heads,
        hidden: config.count(&["intermediate_size"])?,
        activation: activation(config, &["hidden_act"], "gelu")?,
        eps: config.find_positive(&["layer_norm_eps"])?.unwrap_or(1e-12),
        pooling,
        normalised,
    }))
}

/// What modules.json of a sentence encoder does with the last hidden state: how it pools, and whether
/// it normalises.
fn pooling(folder: &Path) -> Result<(Pooling, bool), FormatError> {
    let path = folder.join("modules.json");
    let modules = if path.exists() { Config::read_list(&path)? } else { vec![] };
    let (mut pooling, mut normalised) = (Pooling::None, false);
    for module in &modules {
        let kind = module.text(&["type"])?;
        match kind.rsplit('.').next().unwrap_or(kind) {
            "Transformer" => {}
            "Normalize" => normalised = true,
            "Pooling" => pooling = pooling_of(module, folder)?,
            _ => {
                return Err(module.wrong(
                    "type",
                    "a Transformer, Pooling or Normalize module",
                    &format!("`{kind}`"),
                ));
            }
        }
    }
    Ok((pooling, normalised))
}

fn pooling_of(module: &Config, folder: &Path) -> Result<Pooling, FormatError> {
    let place = module.text(&["path"])?;
    let parts: Vec<Component<'_>> = Path::new(place).components().collect();
    if !matches!(parts[..], [Component::Normal(_)]) {
        return Err(module.wrong("path", "a folder in this one", &format!("`{place}`")));
    }
    let config = Config::read(&folder.join(place).join("config.json"))?;
    let first = config.flag("pooling_mode_cls_token", Otherwise::False)?;
    let mean = config.flag("pooling_mode_mean_tokens", Otherwise::False)?;
    match (first, mean, config.find_text(&["pooling_mode"])?) {
        (true, false, None) | (false, false, Some("cls")) => Ok(Pooling::First),
        (false, true, None) | (false, false, Some("mean")) => Ok(Pooling::Mean),
        _ => Err(config.wrong(
            "pooling_mode",
            "the first token or the mean of tokens",
            "another way to pool, or several",
        )),
    }
}
