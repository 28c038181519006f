//! Fields of config.json that several architectures have: counts within their limits, flags that
//! graphs have built in, activations; and which fields change no result.

use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_models::vit::Patches;
use overdrive_models::{Activation, Bias};
use std::collections::BTreeMap;

/// More blocks than any model has; a graph of them is built in a moment.
const MAX_LAYERS: usize = 1024;

/// Widest head.
pub(super) const MAX_DEPTH: usize = 4096;

/// Most patches of an image, positions of a sound, and bins of a spectrum.
pub(super) const MAX_PLACES: usize = 1 << 16;

/// Largest extent of an image, and most channels.
const MAX_IMAGE: [usize; 2] = [1 << 13, 1 << 10];

pub(super) fn layers(config: &Config, names: &[&'static str]) -> Result<usize, FormatError> {
    at_most(config, names, MAX_LAYERS)
}

/// A count, which must be there.
pub(super) fn at_most(
    config: &Config,
    names: &[&'static str],
    most: usize,
) -> Result<usize, FormatError> {
    let count = config.count(names)?;
    match count <= most {
        true => Ok(count),
        false => Err(config.wrong(names[0], &format!("at most {most}"), &count.to_string())),
    }
}

/// Errs unless `heads` of equal width make up `width`.
pub(super) fn check_heads(
    config: &Config,
    (field, heads): (&str, usize),
    width: usize,
) -> Result<(), FormatError> {
    match width.is_multiple_of(heads) && width / heads <= MAX_DEPTH {
        true => Ok(()),
        false => {
            let expected = format!("a divisor of the width {width}, heads of at most {MAX_DEPTH}");
            Err(config.wrong(field, &expected, &heads.to_string()))
        }
    }
}

/// Errs unless heads of queries can share `key_heads` of keys and values.
pub(super) fn check_key_heads(
    config: &Config,
    heads: usize,
    key_heads: usize,
) -> Result<(), FormatError> {
    match heads.is_multiple_of(key_heads) {
        true => Ok(()),
        false => {
            let expected = format!("a divisor of the {heads} query heads");
            Err(config.wrong("num_key_value_heads", &expected, &key_heads.to_string()))
        }
    }
}

/// Errs unless a flag is absent or has the value that graphs have built in.
pub(super) fn check_flag(
    config: &Config,
    name: &'static str,
    built_in: Otherwise,
) -> Result<(), FormatError> {
    let expected = built_in == Otherwise::True;
    match config.flag(name, built_in)? == expected {
        true => Ok(()),
        false => Err(config.wrong(name, &expected.to_string(), &(!expected).to_string())),
    }
}

/// A bias, where a flag says that there is one.
pub(super) fn bias(
    config: &Config,
    name: &'static str,
    otherwise: Otherwise,
) -> Result<Bias, FormatError> {
    Ok(if config.flag(name, otherwise)? { Bias::Learnt } else { Bias::None })
}

/// The activation that one of these fields names.
pub(super) fn activation(
    config: &Config,
    names: &[&'static str],
    default: &str,
) -> Result<Activation, FormatError> {
    match config.find_text(names)?.unwrap_or(default) {
        "gelu" => Ok(Activation::Gelu(Approximation::Erf)),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::Gelu(Approximation::Tanh)),
        "quick_gelu" => Ok(Activation::QuickGelu),
        "relu" => Ok(Activation::Relu),
        "silu" | "swish" => Ok(Activation::Silu),
        other => {
            let expected = "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu or silu";
            Err(config.wrong(names[0], expected, &format!("`{other}`")))
        }
    }
}

/// Images, and what they are cut into; `patch` is the extent of a patch where the file does not
/// say.
pub(super) fn image_patches(config: &Config, patch: usize) -> Result<Patches, FormatError> {
    let image = config.find_pair("image_size")?.unwrap_or([224; 2]);
    let size = config.find_pair("patch_size")?.unwrap_or([patch; 2]);
    let channels = config.find_count(&["num_channels"])?.unwrap_or(3);
    let [most, most_channels] = MAX_IMAGE;
    if channels > most_channels {
        let expected = format!("at most {most_channels}");
        return Err(config.wrong("num_channels", &expected, &channels.to_string()));
    }
    if image.iter().any(|extent| *extent > most) {
        return Err(config.wrong("image_size", &format!("at most {most}"), &format!("{image:?}")));
    }
    let is_within = |axis: usize| size[axis] <= image[axis];
    let patches = Patches { channels, image, size };
    if !is_within(0) || !is_within(1) || patches.count() > MAX_PLACES {
        let expected = format!("1 to {MAX_PLACES} patches of an image of {image:?}");
        return Err(config.wrong("patch_size", &expected, &format!("patches of {size:?}")));
    }
    Ok(patches)
}

/// Names of the classes of a head, by their numbers.
pub(super) fn classes(config: &Config) -> Result<Vec<String>, FormatError> {
    const UNNAMED: usize = 2;
    let Some(labels) = config.section(&["id2label"])?.filter(|labels| !labels.is_empty()) else {
        let count = config.find_count(&["num_labels"])?.unwrap_or(UNNAMED);
        return Ok((0..count).map(|class| format!("LABEL_{class}")).collect());
    };
    let mut names = BTreeMap::new();
    for (number, name) in labels.texts() {
        let found = number.parse::<usize>().ok().zip(name);
        let (number, name) = found.ok_or_else(|| {
            labels.wrong(number, "the name of a class by its number", "another pair")
        })?;
        names.insert(number, name.to_owned());
    }
    if let Some((expected, found)) = (0..).zip(names.keys()).find(|(at, number)| at != *number) {
        let expected = format!("the name of class {expected}, as classes are numbered from 0");
        return Err(config.wrong("id2label", &expected, &format!("that of class {found}")));
    }
    Ok(names.into_values().collect())
}

/// Fields that do not change what a model computes: its origin, its training, meanings of tokens,
/// extra results of `transformers`. Fields that are read elsewhere are here too.
const IDLE: [&str; 90] = [
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "classifier_proj_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_stride",
    "finetuning_task",
    "forced_decoder_ids",
    "gradient_checkpointing",
    "id2label",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "logit_scale_init_value",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "max_length",
    "max_window_layers",
    "median_filter_width",
    "min_length",
    "model_max_length",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "output_scores",
    "overdrive",
    "pooler_act",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_output_size",
    "pooler_size_per_head",
    "pooler_type",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "remove_invalid_values",
    "renormalize_logits",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sentence_transformers",
    "sliding_window",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_weights_",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_sliding_window",
];

/// Beginnings and ends of the names of more such fields.
const IDLE_STARTS: [&str; 2] = ["_", "summary_"];
const IDLE_ENDS: [&str; 7] =
    ["dropout", "_dropout_prob", "_pdrop", "drop", "_token_id", "_token_index", "layerdrop"];

/// A note on fields that nobody read and that may matter.
pub(super) fn note_on_unknown(config: &Config) -> Option<String> {
    let is_idle = |name: &str| {
        let own = name.rsplit('.').next().unwrap_or(name);
        IDLE.contains(&own)
            || IDLE_STARTS.iter().any(|start| own.starts_with(start))
            || IDLE_ENDS.iter().any(|end| own.ends_with(end))
    };
    let unknown: Vec<String> = config.unasked().into_iter().filter(|name| !is_idle(name)).collect();
    let listed = unknown.join(", ");
    (!unknown.is_empty())
        .then(|| format!("config.json has fields that are not known here: {listed}"))
}
