//! A folder in Hugging Face's format as a model: its architecture by the fields of config.json, its weights by name.
//!
//! This is where what `formats` reads meets what `models` builds. Weights are not mapped: the graphs name their states as
//! the files do, and every difference is an error that lists it; what is renamed or left out by a rule is in `notes`.
//! Invariant: a model that was read has every weight, each of exactly the type that its graph declares.

mod architecture;
mod names;
mod rotary;

pub use architecture::Architecture;

use crate::Template;
use names::fit;
use overdrive_formats::huggingface::{self, Config, Tokenizer};
use overdrive_formats::{Differences, FormatError, ParametersError, Tensors};
use overdrive_ir::{DType, Graph, GraphError, Init};
use overdrive_models::Span;
use serde_json::Value;
use std::path::Path;

/// A model from a folder.
#[derive(Debug)]
pub struct Pretrained {
    /// Its name in results: that of the folder.
    pub name: String,
    /// Its graphs.
    pub architecture: Architecture,
    /// Its config.json, where the graph is all that it describes and no more: not of a sentence encoder, which pools.
    pub config: Option<Value>,
    /// Its weights in f32, by the names of states.
    pub weights: Tensors,
    /// Text to tokens, where the folder tells.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// What was converted, renamed or left out, in sentences.
    pub notes: Vec<String>,
}

/// Why a folder is no model that we can run.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file is absent or damaged, or the weights are not those of the architecture.
    #[error(transparent)]
    Parameters(#[from] Box<ParametersError>),
    /// Sizes in the config do not fit together.
    #[error("config.json describes no model that can be built: {0}")]
    Graph(#[from] GraphError),
}

impl From<ParametersError> for PretrainedError {
    fn from(error: ParametersError) -> Self {
        Box::new(error).into()
    }
}

impl From<FormatError> for PretrainedError {
    fn from(error: FormatError) -> Self {
        ParametersError::from(error).into()
    }
}

impl Pretrained {
    /// Whether a folder means to be in this format.
    pub fn is_at(folder: &Path) -> bool {
        huggingface::is_at(folder)
    }

    /// Reads a folder.
    ///
    /// # Errors
    /// When a file is absent or damaged, when the architecture is unknown (the known ones are listed), or when the weights
    /// differ from what it needs (every difference is listed).
    pub fn read(folder: &Path) -> Result<Self, PretrainedError> {
        let config = Config::read(&folder.join("config.json"))?;
        let architecture = Architecture::read(&config, folder)?;
        let graph = architecture.whole()?;
        let mut notes = architecture.notes();
        let stored = huggingface::read_weights(folder)?;
        let narrow: Vec<String> =
            stored.stored.iter().filter(|&&d| d != DType::F32).map(DType::to_string).collect();
        if !narrow.is_empty() {
            notes.push(format!("weights are stored as {} and kept in f32", narrow.join(" and ")));
        }
        let weights = fit(&architecture, &graph, stored.tensors, &mut notes);
        let differences = Differences::between(&graph, &weights);
        if !differences.is_empty() {
            return Err(ParametersError::Different { path: stored.path, differences }.into());
        }
        let path = folder.join("tokenizer.json");
        let tokenizer =
            path.exists().then(|| Tokenizer::read(&path, architecture.vocabulary())).transpose()?;
        let path = folder.join("generation_config.json");
        let generation = path.exists().then(|| Config::read(&path)).transpose()?;
        let chosen = generation.map(|config| config.ids("eos_token_id")).transpose()?.unwrap_or_default();
        let ends = if chosen.is_empty() { config.ids("eos_token_id")? } else { chosen };
        let name = folder
            .canonicalize()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let name = name.unwrap_or_else(|| folder.display().to_string());
        let config = (!architecture.pools()).then(|| config.to_json());
        Ok(Self { name, architecture, config, weights, tokenizer, ends, notes })
    }

    /// The graph of a span of a decoder, whose states begin as the weights, caches empty.
    ///
    /// # Errors
    /// When the model is no decoder.
    pub fn graph(&self, span: Span) -> Result<Graph, GraphError> {
        Ok(self.loaded(self.architecture.span(span)?))
    }

    fn loaded(&self, graph: Graph) -> Graph {
        graph.with_initial_values(|name, _| {
            self.weights.get(name).map_or(Init::ZEROS, |w| Init::Value(w.clone()))
        })
    }

    /// The model of whole sequences: dimensions `batch` and `tokens`.
    ///
    /// # Errors
    /// Never after [`Self::read`], which has built the same graph.
    pub fn template(&self) -> Result<Template, GraphError> {
        let tokens = self.architecture.context().min(DEFAULT_TOKENS);
        Ok(Template {
            name: self.name.clone(),
            graph: self.loaded(self.architecture.whole()?),
            dimensions: [("batch".to_owned(), 1), ("tokens".to_owned(), tokens)].into(),
            limits: [("tokens".to_owned(), self.architecture.context())].into(),
            vocabulary: Some(self.architecture.vocabulary()),
            config: self.config.clone(),
        })
    }
}

/// Tokens of a sequence unless the user says otherwise.
const DEFAULT_TOKENS: usize = 128;
