//! From the fields of config.json to the sizes of a graph.
//!
//! Fields have the names and defaults of `transformers` 4 and 5. What a field asks for and a graph
//! does not have is an error that names it, never an approximation; a field that is not known at all
//! is named in a note. Invariant: sizes that are returned can be multiplied.

use super::bert::bert;
use super::fields::note_on_unknown;
use super::gpt2::gpt2;
use super::llama::llama;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::Config;
use overdrive_ir::{Graph, GraphError};
use overdrive_models::Span;
use overdrive_models::bert::{Bert, Pooling};
use overdrive_models::gpt2::Gpt2;
use overdrive_models::llama::Llama;
use std::path::Path;

/// A known architecture with its sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Architecture {
    /// GPT-2.
    Gpt2(Gpt2),
    /// Llama and its kin, with the tokens of the longest sequence.
    Llama(Box<Llama>, usize),
    /// BERT and sentence encoders.
    Bert(Bert),
}

/// Values of `model_type`, and what reads the rest.
const KNOWN: [(&str, Read); 12] = [
    ("bert", bert),
    ("gemma", llama),
    ("gemma2", llama),
    ("gemma3_text", llama),
    ("gpt2", gpt2),
    ("llama", llama),
    ("mistral", llama),
    ("mixtral", llama),
    ("phi3", llama),
    ("qwen2", llama),
    ("qwen3", llama),
    ("qwen3_moe", llama),
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
        // Rows of attention that were removed, of which no weights are left.
        if config.section(&["pruned_heads"])?.is_some_and(|heads| !heads.is_empty()) {
            return Err(config.wrong("pruned_heads", "none", "some"));
        }
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
            Self::Gpt2(gpt2) => std::mem::take(&mut gpt2.tied),
            Self::Llama(llama, _) => std::mem::take(&mut llama.tied),
            Self::Bert(_) => false,
        }
    }

    /// Whether the model gives logits of the next token.
    pub fn has_head(&self) -> bool {
        !matches!(self, Self::Bert(_))
    }

    /// Whether the head is the table of tokens.
    pub(super) fn is_tied(&self) -> bool {
        match self {
            Self::Gpt2(gpt2) => gpt2.tied,
            Self::Llama(llama, _) => llama.tied,
            Self::Bert(_) => false,
        }
    }

    /// What a user should know of how this runs; `config` is what it was read from.
    pub(super) fn notes(&self, config: &Config) -> Vec<String> {
        let mut notes: Vec<String> = note_on_unknown(config).into_iter().collect();
        let Self::Llama(llama, context) = self else { return notes };
        let windows: Vec<usize> = llama.windows.iter().copied().flatten().collect();
        if let Some(tokens) = windows.first() {
            let (some, all) = (windows.len(), llama.layers);
            notes.push(format!("in {some} of {all} blocks a token sees the last {tokens}"));
        }
        if let Some(experts) = &llama.experts {
            let (all, chosen) = (experts.count, experts.chosen);
            notes.push(format!("all {all} experts are computed for each token, {chosen} count"));
        }
        if let Ok(Some(longest)) = config.find_count(&["max_position_embeddings"])
            && longest > *context
        {
            notes.push(format!(
                "sequences of at most {context} tokens: longer ones, up to {longest}, would be \
                 turned by other angles"
            ));
        }
        notes
    }
}
