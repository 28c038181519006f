//! config.json of Llama and its kin. They share most fields. They differ in defaults, and in
//! properties that have no field.

use super::architecture::Architecture;
use super::facts::Facts;
use super::fields::{
    MAX_DEPTH, activation, at_most, bias, check_flag, check_heads, check_key_heads, layers,
};
use super::rotary::{Positions, rotary, rotary_by_kind};
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_models::llama::{Llama, Norms, QkNorm};
use overdrive_models::{Activation, Bias, ExpertNames, Experts};
use std::path::Path;

/// Most experts of a block, and of a model: each is three layers of the graph.
const MAX_EXPERTS: [usize; 2] = [512, 16_384];

/// Defaults of the fields of an architecture.
struct Defaults {
    /// Width of a head; none where it is the width over the heads.
    depth: Option<usize>,
    /// Heads of keys and values; `None` means as many as query heads.
    key_heads: Option<usize>,
    eps: f64,
    longest: usize,
    /// Base of rotary positions.
    base: f64,
    tied: Otherwise,
}

const LLAMA: Defaults = Defaults {
    depth: None,
    key_heads: None,
    eps: 1e-6,
    longest: 2048,
    base: 10_000.0,
    tied: Otherwise::False,
};

const GEMMA: Defaults = Defaults {
    depth: Some(256),
    key_heads: Some(4),
    longest: 8192,
    tied: Otherwise::True,
    ..LLAMA
};

impl Defaults {
    fn of(kin: &str) -> Self {
        const LONG: usize = 131_072;
        match kin {
            "mistral" => Self { key_heads: Some(8), longest: LONG, ..LLAMA },
            "mixtral" => Self { key_heads: Some(8), eps: 1e-5, longest: LONG, base: 1e6, ..LLAMA },
            "qwen2" => Self { key_heads: Some(32), longest: 32_768, ..LLAMA },
            "qwen3" => Self { depth: Some(128), key_heads: Some(32), longest: 32_768, ..LLAMA },
            "qwen3_moe" => Self { key_heads: Some(4), longest: 32_768, ..LLAMA },
            "smollm3" => Self {
                key_heads: Some(4),
                longest: 32_768,
                base: 2e6,
                tied: Otherwise::True,
                ..LLAMA
            },
            "olmo2" => Self { eps: 1e-5, ..LLAMA },
            "phi3" => Self { eps: 1e-5, longest: 4096, ..LLAMA },
            "gemma" => Self { key_heads: Some(16), ..GEMMA },
            "gemma2" => GEMMA,
            "gemma3_text" => Self { longest: LONG, base: 1e6, ..GEMMA },
            _ => LLAMA,
        }
    }
}

pub(super) fn read(config: &Config, kin: &str, _: &Path) -> Result<Architecture, FormatError> {
    let defaults = Defaults::of(kin);
    let is_gemma = kin.starts_with("gemma");
    let is_later_gemma = is_gemma && kin != "gemma";
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    let key_heads = config.find_count(&["num_key_value_heads"])?;
    // An older file may say `null` for as many as there are queries.
    let said = config.has("num_key_value_heads");
    let key_heads = key_heads.or(defaults.key_heads.filter(|_| !said)).unwrap_or(heads);
    let depth = depth(config, [width, heads], &defaults)?;
    check_key_heads(config, heads, key_heads)?;
    let longest = config.find_count(&["max_position_embeddings"])?.unwrap_or(defaults.longest);
    let layers = layers(config, &["num_hidden_layers"])?;
    let part = (kin == "phi3").then_some(1.0);
    let positions = Positions { depth, longest, base: defaults.base, part };
    let (rotary, window_rotary, context) = if kin == "gemma3_text" {
        let [full, window] = rotary_by_kind(config, positions, 10_000.0)?;
        (full, Some(window), longest)
    } else {
        let (rotary, context) = rotary(config, positions)?;
        (rotary, None, context)
    };
    let qkv_and_output_bias = match kin {
        "qwen2" => [Bias::Learnt, Bias::None],
        "mistral" | "mixtral" | "phi3" => [Bias::None; 2],
        _ => [bias(config, "attention_bias", Otherwise::False)?; 2],
    };
    let ffn_bias = match kin {
        "llama" | "smollm3" => bias(config, "mlp_bias", Otherwise::False)?,
        _ => Bias::None,
    };
    if is_gemma {
        check_flag(config, "use_bidirectional_attention", Otherwise::False)?;
    }
    let cap = |name| if is_later_gemma { config.find_positive(&[name]) } else { Ok(None) };
    let scalar = is_later_gemma.then(|| config.find_positive(&["query_pre_attn_scalar"]));
    let scale = scalar.transpose()?.map(|scalar| scalar.unwrap_or(256.0).powf(-0.5));
    let experts = experts(config, kin, layers)?;
    let hidden = match &experts {
        Some(experts) if kin == "mixtral" => experts.hidden,
        _ => config.count(&["intermediate_size"])?,
    };
    let sizes = Llama {
        vocabulary: config.count(&["vocab_size"])?,
        width,
        layers,
        windows: windows(config, kin, layers)?,
        unturned: unturned(config, kin, layers)?,
        heads,
        key_heads,
        depth,
        hidden,
        eps: config.find_positive(&["rms_norm_eps"])?.unwrap_or(defaults.eps),
        rotary,
        window_rotary,
        scale,
        // The third version has the field and does not look at it.
        score_cap: cap("attn_logit_softcapping")?.filter(|_| kin == "gemma2"),
        logit_cap: cap("final_logit_softcapping")?,
        embedding_scale: is_gemma.then(|| (width as f64).sqrt()),
        qkv_bias: qkv_and_output_bias[0],
        output_bias: qkv_and_output_bias[1],
        qk_norm: match kin {
            "qwen3" | "qwen3_moe" | "gemma3_text" => QkNorm::Heads,
            "olmo2" => QkNorm::Whole,
            _ => QkNorm::None,
        },
        norm_offset: if is_gemma { 1.0 } else { 0.0 },
        norms: match kin {
            "olmo2" => Norms::Behind,
            _ if is_later_gemma => Norms::Around,
            _ => Norms::Before,
        },
        activation: gate(config, kin)?,
        ffn_bias,
        experts,
        joint: kin == "phi3",
        tied: config.flag("tie_word_embeddings", defaults.tied)?,
    };
    Ok(Architecture::Llama(Box::new(sizes), context))
}

pub(super) fn facts(llama: &Llama, context: usize) -> Facts {
    Facts { tied: llama.tied, ..Facts::decoder(llama.vocabulary, context) }
}

/// Notes for a user on how it runs.
pub(super) fn notes(llama: &Llama, context: usize, config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    let windows: Vec<usize> = llama.windows.iter().copied().flatten().collect();
    if let Some(tokens) = windows.first() {
        let (some, all) = (windows.len(), llama.layers);
        notes.push(format!("in {some} of {all} blocks a token sees the last {tokens}"));
    }
    if let Some(experts) = &llama.experts {
        let (all, chosen) = (experts.count, experts.chosen);
        notes.push(format!(
            "a GPU computes all {all} experts for each token, of which {chosen} count; a processor \
             leaves out those that no token of a step chose"
        ));
    }
    if let Ok(Some(longest)) = config.find_count(&["max_position_embeddings"])
        && longest > context
    {
        notes.push(format!(
            "sequences of at most {context} tokens: longer ones, up to {longest}, would be turned \
             by \
             other angles"
        ));
    }
    notes
}

/// Width of a head.
fn depth(
    config: &Config,
    [width, heads]: [usize; 2],
    defaults: &Defaults,
) -> Result<usize, FormatError> {
    let depth = match config.find_count(&["head_dim"])?.or(defaults.depth) {
        Some(depth) => depth,
        None => {
            check_heads(config, ("num_attention_heads", heads), width)?;
            width / heads
        }
    };
    if !depth.is_multiple_of(2) || depth > MAX_DEPTH || heads > width.max(MAX_DEPTH) {
        let expected = format!("heads of an even width of at most {MAX_DEPTH}");
        return Err(config.wrong("head_dim", &expected, &format!("{heads} heads of {depth}")));
    }
    Ok(depth)
}

/// The activation of the gate.
fn gate(config: &Config, kin: &str) -> Result<Activation, FormatError> {
    let tanh = "gelu_pytorch_tanh";
    match kin {
        // Files of the first release say `gelu` and mean this one.
        "gemma" => match activation(config, &["hidden_act"], tanh)? {
            Activation::Gelu(_) => Ok(Activation::Gelu(Approximation::Tanh)),
            other => Ok(other),
        },
        "gemma2" | "gemma3_text" => activation(config, &["hidden_activation"], tanh),
        _ => activation(config, &["hidden_act"], "silu"),
    }
}

/// The mixture of experts, where there is one.
fn experts(config: &Config, kin: &str, layers: usize) -> Result<Option<Experts>, FormatError> {
    let (names, hidden) = match kin {
        "mixtral" => (&ExpertNames::MIXTRAL, "intermediate_size"),
        "qwen3_moe" => (&ExpertNames::QWEN, "moe_intermediate_size"),
        _ => return Ok(None),
    };
    let silu = activation(config, &["hidden_act"], "silu")?;
    if silu != Activation::Silu {
        return Err(config.wrong("hidden_act", "silu, which experts have", "another one"));
    }
    let most = MAX_EXPERTS[0].min(MAX_EXPERTS[1] / layers);
    let count = at_most(config, &["num_local_experts", "num_experts"], most)?;
    let chosen = at_most(config, &["num_experts_per_tok"], count)?;
    let (normalised, plain_blocks) = if kin == "mixtral" {
        (true, vec![])
    } else {
        let step = config.find_count(&["decoder_sparse_step"])?.unwrap_or(1);
        let plain = config.numbers("mlp_only_layers")?;
        let is_plain = |layer: &usize| plain.contains(layer) || !(layer + 1).is_multiple_of(step);
        let normalised = config.flag("norm_topk_prob", Otherwise::False)?;
        (normalised, (0..layers).filter(is_plain).collect())
    };
    let hidden = config.count(&[hidden])?;
    Ok(Some(Experts { count, chosen, normalised, hidden, plain_blocks, names }))
}

/// Blocks that turn no queries and keys: SmolLM3 lists 0 for them, or says that every so manieth is
/// one.
fn unturned(config: &Config, kin: &str, layers: usize) -> Result<Vec<usize>, FormatError> {
    const LISTED: &str = "no_rope_layers";
    const DEFAULT_INTERVAL: usize = 4;
    if kin != "smollm3" {
        return Ok(vec![]);
    }
    let every = config.find_count(&["no_rope_layer_interval"])?.unwrap_or(DEFAULT_INTERVAL);
    let turned = config.numbers(LISTED)?;
    if !config.has(LISTED) || config.to_json()[LISTED].is_null() {
        return Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(every)).collect());
    }
    match turned.len() >= layers {
        true => Ok((0..layers).filter(|&layer| turned[layer] == 0).collect()),
        false => Err(config.wrong(LISTED, &format!("{layers} of them"), &turned.len().to_string())),
    }
}

/// How many tokens a query of each block sees. Mistral, Mixtral and Phi-3 have one window for all
/// blocks; Gemma alternates; Qwen names the blocks that have one, in older files by the number of
/// the first.
fn windows(config: &Config, kin: &str, layers: usize) -> Result<Vec<Option<usize>>, FormatError> {
    if matches!(kin, "llama" | "gemma" | "olmo2") {
        return Ok(vec![]);
    }
    let window = config.find_count(&["sliding_window"])?;
    let built_in = matches!(kin, "mistral" | "gemma2" | "gemma3_text").then_some(DEFAULT_WINDOW);
    let window = window.or(built_in.filter(|_| !config.has("sliding_window")));
    if matches!(kin, "mistral" | "mixtral" | "phi3") {
        return Ok(vec![window; layers]);
    }
    let may_slide = kin.starts_with("qwen") || kin == "smollm3";
    let slides = may_slide && config.flag("use_sliding_window", Otherwise::False)?;
    let window = window.filter(|_| slides || !may_slide);
    if kin == "qwen3_moe" {
        return Ok(vec![window; layers]);
    }
    let Some(kinds) = config.find_texts("layer_types")? else {
        let has_window: Box<dyn Fn(usize) -> bool> = if kin == "smollm3" {
            let unturned = unturned(config, kin, layers)?;
            Box::new(move |layer| unturned.contains(&layer))
        } else if may_slide {
            let first = config.find_number("max_window_layers")?;
            let first = first.unwrap_or(DEFAULT_FULL_LAYERS);
            Box::new(move |layer| layer >= first)
        } else if kin == "gemma2" {
            Box::new(|layer| layer.is_multiple_of(2))
        } else {
            let names = ["sliding_window_pattern", "_sliding_window_pattern"];
            let every = config.find_count(&names)?.unwrap_or(DEFAULT_PATTERN);
            Box::new(move |layer| !(layer + 1).is_multiple_of(every))
        };
        return Ok((0..layers).map(|layer| window.filter(|_| has_window(layer))).collect());
    };
    if kinds.len() != layers {
        let found = kinds.len().to_string();
        return Err(config.wrong("layer_types", &format!("{layers} of them"), &found));
    }
    let of_kind = |kind: &&str| match *kind {
        "full_attention" => Ok(None),
        "sliding_attention" if window.is_some() => Ok(window),
        "sliding_attention" => {
            let expected = match may_slide {
                true => "a `sliding_window` with `use_sliding_window`, which layer_types asks for",
                false => "a count, which layer_types asks for",
            };
            Err(config.wrong("sliding_window", expected, "none"))
        }
        other => {
            let expected = "full_attention or sliding_attention";
            Err(config.wrong("layer_types", expected, &format!("`{other}`")))
        }
    };
    kinds.iter().map(of_kind).collect()
}

/// For Qwen: number of blocks before the first with a window, if a file does not say.
const DEFAULT_FULL_LAYERS: usize = 28;

/// Tokens of a window where a file does not say.
const DEFAULT_WINDOW: usize = 4096;

/// For Gemma 3: every `DEFAULT_PATTERN`-th block sees all tokens.
const DEFAULT_PATTERN: usize = 6;
