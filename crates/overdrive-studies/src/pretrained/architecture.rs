//! From the fields of config.json to the sizes of a graph.
//!
//! Fields have the names and defaults of `transformers` 4 and 5. What a field asks for and a graph does not have is an
//! error that names it, never an approximation. Invariant: sizes that are returned can be multiplied, and no more than
//! [`MAX_LAYERS`] blocks are built.

use super::rotary::rotary;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{Graph, GraphError};
use overdrive_models::bert::{Bert, Pooling};
use overdrive_models::gpt2::Gpt2;
use overdrive_models::llama::Llama;
use overdrive_models::{Bias, Span};
use std::path::{Component, Path};

/// More blocks than any model has; a graph of them is built in a moment.
const MAX_LAYERS: usize = 1024;

/// Widest head.
const MAX_DEPTH: usize = 4096;

/// A known architecture with its sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Architecture {
    /// GPT-2.
    Gpt2(Gpt2),
    /// Llama and its kin, with the tokens of the longest sequence.
    Llama(Llama, usize),
    /// BERT and sentence encoders.
    Bert(Bert),
}

/// Values of `model_type`, and what reads the rest.
const KNOWN: [(&str, Read); 6] = [
    ("bert", bert),
    ("gpt2", |config, _, _| gpt2(config)),
    ("llama", |config, kin, _| llama(config, kin)),
    ("mistral", |config, kin, _| llama(config, kin)),
    ("qwen2", |config, kin, _| llama(config, kin)),
    ("qwen3", |config, kin, _| llama(config, kin)),
];

type Read = fn(&Config, &str, &Path) -> Result<Architecture, FormatError>;

impl Architecture {
    /// What config.json describes; `folder` is where sentence encoders say how they pool.
    pub(crate) fn read(config: &Config, folder: &Path) -> Result<Self, FormatError> {
        let found = config.text(&["model_type"])?;
        let Some((name, read)) = KNOWN.iter().find(|(name, _)| *name == found) else {
            let known = KNOWN.map(|(name, _)| name).join(", ");
            let error = config.wrong("model_type", &format!("one of {known}"), &format!("`{found}`"));
            return Err(error);
        };
        read(config, name, folder)
    }

    /// The graph of whole sequences.
    pub(crate) fn whole(&self) -> Result<Graph, GraphError> {
        match self {
            Self::Bert(bert) => bert.build(),
            Self::Gpt2(_) | Self::Llama(..) => self.span(Span::Whole),
        }
    }

    /// The graph of a span.
    ///
    /// # Errors
    /// When this is no decoder.
    pub fn span(&self, span: Span) -> Result<Graph, GraphError> {
        match self {
            Self::Gpt2(gpt2) => gpt2.build(span),
            Self::Llama(llama, _) => llama.build(span),
            Self::Bert(_) => Err(GraphError {
                op: "generate".into(),
                scope: "bert".into(),
                expected: "a decoder, which gives the next token".into(),
                found: "an encoder".into(),
                remedy: "use `bench` or `eval` with it".into(),
            }),
        }
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Gpt2(gpt2) => gpt2.vocabulary,
            Self::Llama(llama, _) => llama.vocabulary,
            Self::Bert(bert) => bert.vocabulary,
        }
    }

    /// Tokens of the longest sequence.
    pub fn context(&self) -> usize {
        match self {
            Self::Gpt2(gpt2) => gpt2.context,
            Self::Llama(_, context) => *context,
            Self::Bert(bert) => bert.context,
        }
    }

    /// Whether hidden states become one vector at the end, which config.json does not tell.
    pub(super) fn pools(&self) -> bool {
        matches!(self, Self::Bert(bert) if bert.pooling != Pooling::None || bert.normalised)
    }

    /// The name of a module without the prefix that only some classes of `transformers` give it.
    pub(super) fn bare<'n>(&self, name: &'n str) -> &'n str {
        name.strip_prefix(self.prefix()).unwrap_or(name)
    }

    /// What stands before the names of modules where a class adds a head.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Self::Gpt2(_) => "transformer.",
            Self::Llama(..) => "model.",
            Self::Bert(_) => "bert.",
        }
    }

    /// The state of the table of tokens.
    pub(super) fn tokens(&self) -> &'static str {
        match self {
            Self::Gpt2(_) => "transformer.wte.weight",
            Self::Llama(..) => "model.embed_tokens.weight",
            Self::Bert(_) => "embeddings.word_embeddings.weight",
        }
    }

    /// Gives the model a head of its own; whether it had none.
    pub(super) fn untie(&mut self) -> bool {
        match self {
            Self::Gpt2(Gpt2 { tied, .. }) | Self::Llama(Llama { tied, .. }, _) => std::mem::take(tied),
            Self::Bert(_) => false,
        }
    }

    /// Whether the model gives logits of the next token.
    pub fn has_head(&self) -> bool {
        !matches!(self, Self::Bert(_))
    }

    /// Whether the head is the table of tokens.
    pub(super) fn is_tied(&self) -> bool {
        matches!(self, Self::Gpt2(Gpt2 { tied: true, .. }) | Self::Llama(Llama { tied: true, .. }, _))
    }

    /// What a user should know of how this runs.
    pub(super) fn notes(&self) -> Vec<String> {
        match self {
            Self::Llama(llama, _) => {
                let windows: Vec<usize> = llama.windows.iter().copied().flatten().collect();
                let said = windows.first().map(|tokens| {
                    format!("in {} of {} blocks a token sees the last {tokens}", windows.len(), llama.layers)
                });
                said.into_iter().collect()
            }
            _ => vec![],
        }
    }
}

fn layers(config: &Config, names: &[&'static str]) -> Result<usize, FormatError> {
    let layers = config.count(names)?;
    match layers <= MAX_LAYERS {
        true => Ok(layers),
        false => Err(config.wrong(names[0], &format!("at most {MAX_LAYERS}"), &layers.to_string())),
    }
}

/// Errs unless `heads` of equal width make up `width`.
fn check_heads(config: &Config, (field, heads): (&str, usize), width: usize) -> Result<(), FormatError> {
    match width.is_multiple_of(heads) && width / heads <= MAX_DEPTH {
        true => Ok(()),
        false => Err(config.wrong(
            field,
            &format!("a divisor of the width {width}, heads of at most {MAX_DEPTH}"),
            &heads.to_string(),
        )),
    }
}

/// Errs unless a flag is absent or has the value that graphs have built in.
fn check_flag(config: &Config, name: &'static str, built_in: Otherwise) -> Result<(), FormatError> {
    let expected = built_in == Otherwise::True;
    match config.flag(name, built_in)? == expected {
        true => Ok(()),
        false => Err(config.wrong(name, &expected.to_string(), &(!expected).to_string())),
    }
}

fn gelu(config: &Config, names: &[&'static str], default: &str) -> Result<Approximation, FormatError> {
    match config.find_text(names)?.unwrap_or(default) {
        "gelu" => Ok(Approximation::Erf),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Approximation::Tanh),
        other => Err(config.wrong(
            names[0],
            "gelu, gelu_new, gelu_fast or gelu_pytorch_tanh",
            &format!("`{other}`"),
        )),
    }
}

fn gpt2(config: &Config) -> Result<Architecture, FormatError> {
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
        activation: gelu(config, &["activation_function"], "gelu_new")?,
        eps: config.find_positive(&["layer_norm_epsilon"])?.unwrap_or(1e-5),
        tied: config.flag("tie_word_embeddings", Otherwise::True)?,
    }))
}

fn llama(config: &Config, kin: &str) -> Result<Architecture, FormatError> {
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    let key_heads = config.find_count(&["num_key_value_heads"])?.unwrap_or(heads);
    let depth = match config.find_count(&["head_dim"])? {
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
    if !heads.is_multiple_of(key_heads) {
        let expected = format!("a divisor of the {heads} query heads");
        return Err(config.wrong("num_key_value_heads", &expected, &key_heads.to_string()));
    }
    let activation = config.find_text(&["hidden_act"])?.unwrap_or("silu");
    if activation != "silu" {
        return Err(config.wrong("hidden_act", "silu", &format!("`{activation}`")));
    }
    let longest = config.find_count(&["max_position_embeddings"])?.unwrap_or(2048);
    let bias = |is_learnt| if is_learnt { Bias::Learnt } else { Bias::None };
    let has_bias = kin != "qwen2" && config.flag("attention_bias", Otherwise::False)?;
    let layers = layers(config, &["num_hidden_layers"])?;
    let sizes = Llama {
        vocabulary: config.count(&["vocab_size"])?,
        width,
        layers,
        windows: windows(config, kin, layers)?,
        heads,
        key_heads,
        depth,
        hidden: config.count(&["intermediate_size"])?,
        eps: config.find_positive(&["rms_norm_eps"])?.unwrap_or(1e-6),
        rotary: rotary(config, [depth, longest])?,
        qkv_bias: bias(has_bias || kin == "qwen2"),
        output_bias: bias(has_bias),
        qk_norm: kin == "qwen3",
        ffn_bias: bias(config.flag("mlp_bias", Otherwise::False)?),
        tied: config.flag("tie_word_embeddings", Otherwise::False)?,
    };
    Ok(Architecture::Llama(sizes, longest))
}

/// How many tokens a query of each block sees. Mistral has one window for all blocks; Qwen names the blocks that have one, in
/// older files by the number of the first.
fn windows(config: &Config, kin: &str, layers: usize) -> Result<Vec<Option<usize>>, FormatError> {
    if kin == "llama" {
        return Ok(vec![]);
    }
    let window = config.find_count(&["sliding_window"])?;
    if kin == "mistral" {
        return Ok(vec![window; layers]);
    }
    let slides = config.flag("use_sliding_window", Otherwise::False)?;
    let window = window.filter(|_| slides);
    let Some(kinds) = config.find_texts("layer_types")? else {
        let first = config.find_number("max_window_layers")?.unwrap_or(DEFAULT_FULL_LAYERS);
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect());
    };
    if kinds.len() != layers {
        return Err(config.wrong("layer_types", &format!("{layers} of them"), &kinds.len().to_string()));
    }
    let of_kind = |kind: &&str| match *kind {
        "full_attention" => Ok(None),
        "sliding_attention" if window.is_some() => Ok(window),
        "sliding_attention" => {
            let expected = "a `sliding_window` with `use_sliding_window`, which layer_types asks for";
            Err(config.wrong("sliding_window", expected, "none"))
        }
        other => {
            let expected = "full_attention or sliding_attention";
            Err(config.wrong("layer_types", expected, &format!("`{other}`")))
        }
    };
    kinds.iter().map(of_kind).collect()
}

/// Of Qwen, blocks before the first with a window where a file does not say.
const DEFAULT_FULL_LAYERS: usize = 28;

fn bert(config: &Config, _: &str, folder: &Path) -> Result<Architecture, FormatError> {
    let width = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    check_heads(config, ("num_attention_heads", heads), width)?;
    check_flag(config, "is_decoder", Otherwise::False)?;
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
        activation: gelu(config, &["hidden_act"], "gelu")?,
        eps: config.find_positive(&["layer_norm_eps"])?.unwrap_or(1e-12),
        pooling,
        normalised,
    }))
}

/// What modules.json of a sentence encoder does with the last hidden state: how it pools, and whether it normalises.
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
