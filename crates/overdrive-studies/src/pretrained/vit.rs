//! config.json of vision transformers.

use super::architecture::Architecture;
use super::facts::{Facts, ModelTask, NamedExtent};
use super::fields::{activation, bias, check_heads, classes, image_patches, layers};
use super::labels::logits;
use super::preprocessing;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::Stack;
use overdrive_models::vit::Vit;
use std::path::Path;

/// The class of `transformers` whose head gives logits of classes.
const CLASSIFIER: &str = "ViTForImageClassification";

pub(super) fn read(config: &Config, _: &str, _: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    check_heads(config, ("num_attention_heads", heads), width)?;
    let named = config.find_texts("architectures")?.unwrap_or_default();
    let has_head = named.contains(&CLASSIFIER);
    Ok(Architecture::Vit(Vit {
        patches: image_patches(config, 16)?,
        stack: Stack {
            width,
            layers: layers(config, &["num_hidden_layers"])?,
            heads,
            hidden: config.count(&["intermediate_size"])?,
            activation: activation(config, &["hidden_act"], "gelu")?,
            eps: config.find_positive(&["layer_norm_eps"])?.unwrap_or(1e-12),
            qkv_bias: [bias(config, "qkv_bias", Otherwise::True)?; 3],
        },
        classes: if has_head { Some(classes(config)?.len()) } else { None },
    }))
}

pub(super) fn facts(vit: &Vit) -> Facts {
    Facts {
        task: ModelTask::Other,
        extents: vec![NamedExtent::BATCH],
        vocabulary: None,
        prefix: "vit.",
        tokens: None,
        head: None,
        tied: false,
        buffers: &["embeddings.mask_token"],
        other_heads: match vit.classes {
            Some(_) => &["decoder.", "pooler.", "vit.pooler."],
            None => &["decoder.", "pooler.", "vit.pooler.", "classifier."],
        },
        newer_names: &[
            ("encoder.layer.", "layers."),
            ("attention.attention.query", "attention.q_proj"),
            ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"),
            ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
        ],
    }
}

/// Notes for a user on its input and its output.
pub(super) fn notes(vit: &Vit, config: &Config, folder: &Path) -> Result<Vec<String>, FormatError> {
    let output = match vit.classes {
        Some(_) => logits(&classes(config)?),
        None => "y is the last hidden state, since `architectures` names no classifier".to_owned(),
    };
    let mut notes = vec![output];
    notes.extend(preprocessing::images(folder, ("x", vit.patches.image))?);
    Ok(notes)
}
