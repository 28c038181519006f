//! config.json of CLIP: a section for each tower.

use super::architecture::Architecture;
use super::facts::{Facts, ModelTask, NamedExtent};
use super::fields::{activation, check_heads, image_patches, layers};
use super::preprocessing;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::Config;
use overdrive_models::clip::{Clip, End};
use overdrive_models::{Bias, Stack};
use std::path::Path;

/// The number in files of old versions of `transformers` where they mean that no end token is
/// known.
const NO_END: u32 = 2;

/// Texts of a call unless the user says otherwise.
const DEFAULT_TEXTS: usize = 4;

/// Defaults of the fields of a tower.
struct Defaults {
    width: usize,
    hidden: usize,
    heads: usize,
}

pub(super) fn read(config: &Config, _: &str, _: &Path) -> Result<Architecture, FormatError> {
    let text = section(config, ["text_config", "text_config_dict"])?;
    let vision = section(config, ["vision_config", "vision_config_dict"])?;
    let end = match text.ids("eos_token_id")?[..] {
        [] => End::Token(49_407),
        [NO_END] => End::Largest,
        [id] => End::Token(id),
        _ => return Err(text.wrong("eos_token_id", "one token", "several")),
    };
    Ok(Architecture::Clip(Box::new(Clip {
        vocabulary: text.find_count(&["vocab_size"])?.unwrap_or(49_408),
        context: text.find_count(&["max_position_embeddings"])?.unwrap_or(77),
        text: stack(&text, &Defaults { width: 512, hidden: 2048, heads: 8 })?,
        end,
        patches: image_patches(&vision, 32)?,
        vision: stack(&vision, &Defaults { width: 768, hidden: 3072, heads: 12 })?,
        projection: config.find_count(&["projection_dim"])?.unwrap_or(512),
    })))
}

/// The fields of a tower. A second section of older files wins in `transformers`, which is the same
/// as long as both say the same.
fn section(config: &Config, [name, older]: [&'static str; 2]) -> Result<Config, FormatError> {
    let found = config.section(&[name])?;
    let Some(second) = config.section(&[older])? else {
        return found.ok_or_else(|| config.wrong(name, "an object", "no such field"));
    };
    let found = found.unwrap_or_else(|| second.clone());
    let (said, json) = (found.to_json(), second.to_json());
    let differs = |(field, value): (&String, &serde_json::Value)| {
        !value.is_null()
            && said.get(field).is_some_and(|other| other != value)
            && field != "transformers_version"
    };
    let fields = json.as_object().into_iter().flatten();
    match fields.into_iter().find(|field| differs(*field)) {
        Some((field, value)) => {
            let expected = format!("what {name} says of `{field}`: {}", said[field]);
            Err(config.wrong(older, &expected, &value.to_string()))
        }
        None => Ok(found),
    }
}

fn stack(tower: &Config, defaults: &Defaults) -> Result<Stack, FormatError> {
    let count =
        |name, otherwise| Ok::<_, FormatError>(tower.find_count(&[name])?.unwrap_or(otherwise));
    let width = count("hidden_size", defaults.width)?;
    let heads = count("num_attention_heads", defaults.heads)?;
    check_heads(tower, ("num_attention_heads", heads), width)?;
    // Read, so that it counts as known; the value of the whole model decides, not that of a tower.
    tower.find_count(&["projection_dim"])?;
    Ok(Stack {
        width,
        layers: if tower.has("num_hidden_layers") {
            layers(tower, &["num_hidden_layers"])?
        } else {
            12
        },
        heads,
        hidden: count("intermediate_size", defaults.hidden)?,
        activation: activation(tower, &["hidden_act"], "quick_gelu")?,
        eps: tower.find_positive(&["layer_norm_eps"])?.unwrap_or(1e-5),
        qkv_bias: [Bias::Learnt; 3],
    })
}

pub(super) fn facts(clip: &Clip) -> Facts {
    Facts {
        task: ModelTask::Other,
        extents: vec![
            NamedExtent::BATCH,
            NamedExtent { name: "texts", size: DEFAULT_TEXTS, most: None },
            NamedExtent::tokens(clip.context),
        ],
        vocabulary: Some(clip.vocabulary),
        prefix: "clip.",
        tokens: None,
        head: None,
        tied: false,
        buffers: &["embeddings.position_ids"],
        other_heads: &[],
        newer_names: &[],
    }
}

/// Notes for a user on its inputs.
pub(super) fn notes(clip: &Clip, folder: &Path) -> Result<Vec<String>, FormatError> {
    let end = match clip.end {
        End::Token(id) => format!("the first token {id}"),
        End::Largest => "its largest token".to_owned(),
    };
    let mut notes =
        vec![format!("a text of input_ids is read off at {end}; what follows changes nothing")];
    notes.extend(preprocessing::images(folder, ("pixel_values", clip.patches.image))?);
    Ok(notes)
}
