//! From the fields of config.json to the sizes of a graph.
//!
//! Fields have the names and defaults of `transformers` 4 and 5. A field that asks for something
//! that a graph does not have is an error that names it, never an approximation. A field that is
//! not known at all is named in a note. Invariant: sizes that are returned can be multiplied.

use super::facts::{Facts, ModelTask};
use super::fields::note_on_unknown;
use super::labels::Labels;
use super::{bert, clip, gpt2, llama, phi, vit, whisper};
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::Config;
use overdrive_ir::{Graph, GraphError};
use overdrive_models::Span;
use overdrive_models::bert::{Bert, Kin, Pooling};
use overdrive_models::clip::Clip;
use overdrive_models::gpt2::Gpt2;
use overdrive_models::llama::Llama;
use overdrive_models::phi::Phi;
use overdrive_models::vit::Vit;
use overdrive_models::whisper::Whisper;
use std::path::Path;

/// A known architecture with its sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Architecture {
    /// GPT-2.
    Gpt2(Gpt2),
    /// Llama and its kin, with the tokens of the longest sequence.
    Llama(Box<Llama>, usize),
    /// Phi, versions 1 to 2.
    Phi(Phi),
    /// BERT and its kin, and sentence encoders.
    Bert(Bert),
    /// Vision transformers.
    Vit(Vit),
    /// CLIP, both towers.
    Clip(Box<Clip>),
    /// Whisper, encoder and decoder.
    Whisper(Box<Whisper>),
}

/// Values of `model_type`, and what reads the rest.
const KNOWN: [(&str, ReadArchitecture); 22] = [
    ("bert", bert::read),
    ("camembert", bert::read),
    ("clip", clip::read),
    ("distilbert", bert::read),
    ("gemma", llama::read),
    ("gemma2", llama::read),
    ("gemma3_text", llama::read),
    ("gpt2", gpt2::read),
    ("llama", llama::read),
    ("mistral", llama::read),
    ("mixtral", llama::read),
    ("olmo2", llama::read),
    ("phi", phi::read),
    ("phi3", llama::read),
    ("qwen2", llama::read),
    ("qwen3", llama::read),
    ("qwen3_moe", llama::read),
    ("roberta", bert::read),
    ("smollm3", llama::read),
    ("vit", vit::read),
    ("whisper", whisper::read),
    ("xlm-roberta", bert::read),
];

type ReadArchitecture = fn(&Config, &str, &Path) -> Result<Architecture, FormatError>;

impl Architecture {
    /// The architecture that config.json describes; `folder` is where sentence encoders say how
    /// they pool.
    pub(crate) fn read(config: &Config, folder: &Path) -> Result<Self, FormatError> {
        let found = config.text(&["model_type"])?;
        let Some((name, read)) = KNOWN.iter().find(|(name, _)| *name == found) else {
            let known = KNOWN.map(|(name, _)| name).join(", ");
            let error =
                config.wrong("model_type", &format!("one of {known}"), &format!("`{found}`"));
            return Err(error);
        };
        // Attention heads that were removed, so that their weights are missing.
        if config.section(&["pruned_heads"])?.is_some_and(|heads| !heads.is_empty()) {
            return Err(config.wrong("pruned_heads", "none", "some"));
        }
        read(config, name, folder)
    }

    /// The graph of whole sequences.
    pub(crate) fn whole(&self) -> Result<Graph, GraphError> {
        match self {
            Self::Bert(bert) => bert.build(),
            Self::Vit(vit) => vit.build(),
            Self::Clip(clip) => clip.build(),
            Self::Whisper(whisper) => whisper.build(),
            Self::Gpt2(_) | Self::Llama(..) | Self::Phi(_) => self.span(Span::Whole),
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
            Self::Phi(phi) => phi.build(span),
            Self::Bert(bert) => {
                let found = if bert.classes.is_some() { "a classifier" } else { "an encoder" };
                Err(no_decoder("bert", found))
            }
            Self::Vit(_) => Err(no_decoder("vit", "a model of images")),
            Self::Clip(_) => Err(no_decoder("clip", "a model of images and texts")),
            Self::Whisper(_) => Err(no_decoder("whisper", "a decoder that needs sound")),
        }
    }

    /// Facts about it that its graph does not say.
    pub(crate) fn facts(&self) -> Facts {
        match self {
            Self::Gpt2(gpt2) => gpt2::facts(gpt2),
            Self::Llama(llama, context) => llama::facts(llama, *context),
            Self::Phi(phi) => phi::facts(phi),
            Self::Bert(bert) => bert::facts(bert),
            Self::Vit(vit) => vit::facts(vit),
            Self::Clip(clip) => clip::facts(clip),
            Self::Whisper(whisper) => whisper::facts(whisper),
        }
    }

    /// Kind of its inputs and outputs.
    pub fn task(&self) -> ModelTask {
        self.facts().task
    }

    /// The layer that gives logits of tokens, if it has one.
    pub fn head(&self) -> Option<&'static str> {
        self.facts().head
    }

    /// Token ids are below this; 0 where there are no tokens.
    pub fn vocabulary(&self) -> usize {
        self.facts().vocabulary.unwrap_or(0)
    }

    /// Tokens of the longest sequence; 0 where there are no tokens.
    pub fn context(&self) -> usize {
        let facts = self.facts();
        let tokens = facts.extents.iter().find(|extent| extent.name == "tokens");
        tokens.and_then(|extent| extent.most).unwrap_or(0)
    }

    /// The layers of the head of a classifier of text; none of any other model.
    pub fn classifier(&self) -> Vec<String> {
        match self {
            Self::Bert(bert) if bert.classes.is_some() => bert.kin.head_layers().into(),
            _ => vec![],
        }
    }

    /// The padding token after shorter texts of a batch. The mask hides it.
    pub fn filling(&self) -> u32 {
        match self {
            Self::Bert(Bert { kin: Kin::Roberta { filling, .. }, .. }) => *filling,
            _ => 0,
        }
    }

    /// The parts of a decoder's layers that ranks divide among themselves: how many of each.
    pub(super) fn divided(&self) -> Vec<(usize, &'static str)> {
        const HEADS: &str = "heads of attention";
        const KEY_HEADS: &str = "heads of keys and values";
        const FEATURES: &str = "features of the feed-forward layers";
        match self {
            Self::Gpt2(gpt2) => vec![(gpt2.heads, HEADS), (gpt2.hidden, FEATURES)],
            Self::Llama(llama, _) => {
                let experts = llama.experts.as_ref();
                let plain = experts.is_none_or(|experts| !experts.plain_blocks.is_empty());
                let parts = [(llama.heads, HEADS), (llama.key_heads, KEY_HEADS)].into_iter();
                parts
                    .chain(plain.then_some((llama.hidden, FEATURES)))
                    .chain(experts.map(|experts| (experts.hidden, "features of the experts")))
                    .collect()
            }
            Self::Phi(phi) => {
                vec![(phi.heads, HEADS), (phi.key_heads, KEY_HEADS), (phi.hidden, FEATURES)]
            }
            Self::Bert(_) | Self::Vit(_) | Self::Clip(_) | Self::Whisper(_) => vec![],
        }
    }

    /// Whether hidden states become one vector at the end, which config.json does not tell.
    pub(super) fn pools(&self) -> bool {
        matches!(self, Self::Bert(bert) if bert.pooling != Pooling::None || bert.normalised)
    }

    /// Gives the model a head of its own; whether it had none.
    pub(super) fn untie(&mut self) -> bool {
        match self {
            Self::Gpt2(gpt2) => std::mem::take(&mut gpt2.tied),
            Self::Llama(llama, _) => std::mem::take(&mut llama.tied),
            Self::Phi(phi) => std::mem::take(&mut phi.tied),
            Self::Whisper(whisper) => std::mem::take(&mut whisper.tied),
            Self::Bert(_) | Self::Vit(_) | Self::Clip(_) => false,
        }
    }

    /// Notes for a user on how this runs; `config` is what it was read from.
    ///
    /// # Errors
    /// When a file about inputs is damaged.
    pub(super) fn notes(&self, config: &Config, folder: &Path) -> Result<Vec<String>, FormatError> {
        let of_kin = match self {
            Self::Gpt2(_) | Self::Phi(_) => vec![],
            Self::Bert(_) => Labels::read(config)?.iter().map(Labels::said).collect(),
            Self::Llama(llama, context) => llama::notes(llama, *context, config),
            Self::Vit(vit) => vit::notes(vit, config, folder)?,
            Self::Clip(clip) => clip::notes(clip, folder)?,
            Self::Whisper(whisper) => whisper::notes(whisper, folder)?,
        };
        Ok(note_on_unknown(config).into_iter().chain(of_kin).collect())
    }
}

fn no_decoder(scope: &str, found: &str) -> GraphError {
    GraphError {
        op: "generate".into(),
        scope: scope.into(),
        expected: "a decoder of text alone, which gives the next token".into(),
        found: found.into(),
        remedy: "use `bench` or `eval` with it".into(),
    }
}
