//! The known facts of an architecture beside its graph: names in its files, its task, its
//! dimensions.
//!
//! One value per architecture, so that a new one is a file that gives it and no line in a dozen
//! functions. Invariant: names are those of the states of its graph.

/// Kind of a model by its inputs and outputs, as far as texts, judges and commands need it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ModelTask {
    /// Tokens to the logits of the next one: it generates, and perplexity judges it.
    Decoder,
    /// Tokens to vectors.
    Encoder,
    /// Tokens to the logits of classes, or to a quantity: labels judge it.
    Classifier,
    /// Something else than tokens alone.
    Other,
}

/// A named dimension of the inputs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct NamedExtent {
    pub(crate) name: &'static str,
    /// Its size unless the user says otherwise.
    pub(crate) size: usize,
    /// Its largest size, where there is one.
    pub(crate) most: Option<usize>,
}

/// Tokens of a sequence unless the user says otherwise.
const DEFAULT_TOKENS: usize = 128;

impl NamedExtent {
    pub(super) const BATCH: Self = Self { name: "batch", size: 1, most: None };

    /// For sequences of at most `context` tokens.
    pub(super) fn tokens(context: usize) -> Self {
        Self { name: "tokens", size: context.min(DEFAULT_TOKENS), most: Some(context) }
    }
}

/// Facts of one architecture.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) task: ModelTask,
    pub(crate) extents: Vec<NamedExtent>,
    /// Token ids are below this, where there are tokens.
    pub(crate) vocabulary: Option<usize>,
    /// Prefix of module names in `transformers` classes that add a head.
    pub(super) prefix: &'static str,
    /// The state with the embedding's weights.
    pub(super) tokens: Option<&'static str>,
    /// The layer that gives logits of tokens.
    pub(crate) head: Option<&'static str>,
    /// Whether that layer shares the embedding's weights.
    pub(super) tied: bool,
    /// Ends of the names of tensors that are computed and no part of a graph.
    pub(super) buffers: &'static [&'static str],
    /// Beginnings of the names of modules of other tasks.
    pub(super) other_heads: &'static [&'static str],
    /// Parts of module names that `transformers` 5 calls otherwise than the files do.
    pub(super) newer_names: &'static [(&'static str, &'static str)],
}

impl Facts {
    /// A decoder of at most `context` tokens below `vocabulary`.
    pub(super) fn decoder(vocabulary: usize, context: usize) -> Self {
        Self {
            task: ModelTask::Decoder,
            extents: vec![NamedExtent::BATCH, NamedExtent::tokens(context)],
            vocabulary: Some(vocabulary),
            prefix: "model.",
            tokens: Some("model.embed_tokens.weight"),
            head: Some("lm_head"),
            tied: false,
            buffers: &[".rotary_emb.inv_freq"],
            other_heads: &[],
            newer_names: &[],
        }
    }

    /// The state of the head's weight.
    pub(super) fn head_weight(&self) -> Option<String> {
        self.head.map(|head| format!("{head}.weight"))
    }

    /// The names that a module may have in `transformers`, without the prefix of a class.
    pub(super) fn modules(&self, name: &str) -> Vec<String> {
        let bare = name.strip_prefix(self.prefix).unwrap_or(name).to_owned();
        let rename = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
        let newer = self.newer_names.iter().fold(bare.clone(), rename);
        if newer == bare { vec![bare] } else { vec![bare, newer] }
    }

    /// Whether a tensor is known to be no part of the graph.
    pub(super) fn leaves_out(&self, name: &str) -> bool {
        self.buffers.iter().any(|end| name.ends_with(end))
            || self.other_heads.iter().any(|start| name.starts_with(start))
            || (self.tied && self.head_weight().is_some_and(|head| name == head))
    }
}
