//! config.json of BERT, RoBERTa and DistilBERT: encoders, classifiers, and sentence encoders by
//! their modules.json.

use super::architecture::Architecture;
use super::facts::{Facts, ModelTask, NamedExtent};
use super::fields::{activation, check_flag, check_heads, layers};
use super::labels::Labels;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::bert::{Bert, Kin, Pooling};
use std::path::{Component, Path};

pub(super) fn read(
    config: &Config,
    name: &str,
    folder: &Path,
) -> Result<Architecture, FormatError> {
    let is_distilled = name == "distilbert";
    let [width_field, heads_field, hidden_field, layers_field] = match is_distilled {
        true => ["dim", "n_heads", "hidden_dim", "n_layers"],
        false => ["hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers"],
    };
    let width = config.count(&[width_field])?;
    let heads = config.count(&[heads_field])?;
    check_heads(config, (heads_field, heads), width)?;
    check_flag(config, "is_decoder", Otherwise::False)?;
    check_flag(config, "add_cross_attention", Otherwise::False)?;
    let positions = config.find_text(&["position_embedding_type"])?.unwrap_or("absolute");
    if positions != "absolute" {
        return Err(config.wrong("position_embedding_type", "absolute", &format!("`{positions}`")));
    }
    let positions = config.count(&["max_position_embeddings"])?;
    let segments = || Ok::<_, FormatError>(config.find_count(&["type_vocab_size"])?.unwrap_or(2));
    let kin = match name {
        "bert" => Kin::Bert { segments: segments()? },
        "distilbert" => {
            // Positions that are computed are stored too.
            config.flag("sinusoidal_pos_embds", Otherwise::False)?;
            Kin::DistilBert
        }
        _ => Kin::Roberta { segments: segments()?, filling: filling(config, positions)? },
    };
    let classes = Labels::read(config)?.map(|labels| labels.names.len());
    let (pooling, normalised) = match classes {
        Some(_) => (Pooling::None, false),
        None => pooling(folder)?,
    };
    let eps = if is_distilled { None } else { config.find_positive(&["layer_norm_eps"])? };
    Ok(Architecture::Bert(Bert {
        vocabulary: config.count(&["vocab_size"])?,
        positions,
        kin,
        width,
        layers: layers(config, &[layers_field])?,
        heads,
        hidden: config.count(&[hidden_field])?,
        activation: activation(
            config,
            &[if is_distilled { "activation" } else { "hidden_act" }],
            "gelu",
        )?,
        eps: eps.unwrap_or(1e-12),
        pooling,
        normalised,
        classes,
    }))
}

/// The token that fills rows up, behind whose id positions begin.
fn filling(config: &Config, positions: usize) -> Result<u32, FormatError> {
    const NAME: &str = "pad_token_id";
    let mut found = config.ids(NAME)?;
    if found.is_empty() {
        found.push(1);
    }
    match found[..] {
        [id] if (id as usize) < positions - 1 => Ok(id),
        _ => {
            let expected = format!("one token, below the {positions} positions less one");
            Err(config.wrong(NAME, &expected, &format!("{found:?}")))
        }
    }
}

pub(super) fn facts(bert: &Bert) -> Facts {
    let is_classifier = bert.classes.is_some();
    let (prefix, other_heads): (_, &[&str]) = match (bert.kin, is_classifier) {
        (Kin::Bert { .. }, true) => ("bert.", &["cls.", "qa_outputs."]),
        (Kin::Bert { .. }, false) => {
            ("bert.", &["cls.", "classifier.", "qa_outputs.", "pooler.", "bert.pooler."])
        }
        (Kin::Roberta { .. }, true) => {
            ("roberta.", &["lm_head.", "qa_outputs.", "pooler.", "roberta.pooler."])
        }
        (Kin::Roberta { .. }, false) => {
            ("roberta.", &["lm_head.", "classifier.", "qa_outputs.", "pooler.", "roberta.pooler."])
        }
        (Kin::DistilBert, true) => ("distilbert.", &["vocab_", "qa_outputs."]),
        (Kin::DistilBert, false) => {
            ("distilbert.", &["vocab_", "pre_classifier.", "classifier.", "qa_outputs."])
        }
    };
    let tokens = match (bert.kin, is_classifier) {
        (_, false) => "embeddings.word_embeddings.weight",
        (Kin::Bert { .. }, true) => "bert.embeddings.word_embeddings.weight",
        (Kin::Roberta { .. }, true) => "roberta.embeddings.word_embeddings.weight",
        (Kin::DistilBert, true) => "distilbert.embeddings.word_embeddings.weight",
    };
    Facts {
        task: if is_classifier { ModelTask::Classifier } else { ModelTask::Encoder },
        extents: vec![NamedExtent::BATCH, NamedExtent::tokens(bert.context())],
        vocabulary: Some(bert.vocabulary),
        prefix,
        tokens: Some(tokens),
        head: None,
        tied: false,
        buffers: &["embeddings.position_ids", "embeddings.token_type_ids"],
        other_heads,
        newer_names: &[],
    }
}

/// The treatment of the last hidden state in modules.json of a sentence encoder: how it is pooled,
/// and whether it is normalised.
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
