//! A folder in Hugging Face's format, or a GGUF file, as a model. The fields of config.json give
//! the architecture; weights are found by name.
//!
//! This connects the files that `formats` reads with the graphs that `models` builds. The graphs
//! name their states as the files do, and every difference is an error that lists it. States that
//! are renamed or left out by a rule are in `notes`. Weights stay as they are stored. When a graph
//! is loaded, 16-bit weights become f32, so that measurements in f32 are f32 throughout. A decoder
//! that runs in their format keeps them. A folder that `quantize` wrote has codes in place of some
//! weights. One of several ranks that decode together
//! reads its part of each weight. Invariant: a model that was read has every weight, each of the
//! type that its graph declares, or of a narrower float type. One that begins anew has none.

mod adapter;
mod architecture;
mod bert;
mod clip;
mod coding;
mod error;
mod facts;
mod fields;
mod from_scratch;
mod gpt2;
mod labels;
mod language;
mod llama;
mod modules;
mod names;
mod others;
mod part;
mod phi;
mod preprocessing;
mod reading;
mod rotary;
mod save;
mod save_gguf;
mod save_int4;
mod save_modelopt;
mod source;
mod vit;
mod whisper;

pub use architecture::Architecture;
pub use coding::Coding;
pub use error::PretrainedError;
pub use facts::ModelTask;
pub use labels::{Labels, Problem};

use crate::Template;
use names::{Fitted, fit, layer_of};
use others::OtherLayout;
use overdrive_formats::huggingface::{Config, Tokenizer};
use overdrive_formats::{Cuts, Differences, FormatError, ParametersError, Tensors};
use overdrive_ir::{DType, Description, Graph, GraphError, Init, Mesh, TensorType};
use part::RankPart;
use serde_json::Value;
use source::PretrainedSource;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model from a folder.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// Its name in results: that of the folder.
    pub name: String,
    /// Its folder, unless it is a single file.
    folder: Option<PathBuf>,
    /// Its config.json, or the one that it would have.
    described: Config,
    /// Its graphs.
    pub architecture: Architecture,
    /// Its config.json, where the graph is all that it describes and no more: not of a sentence
    /// encoder, which pools.
    pub config: Option<Value>,
    /// The meaning of its outputs, for a classifier of text.
    pub labels: Option<Labels>,
    /// Its weights by the names of states, 16-bit ones as they are stored.
    pub weights: Tensors,
    /// Standard deviation of the initial values of a model that has no weights yet.
    initial_std: Option<f64>,
    /// The layers that have codes, if `quantize` wrote it.
    pub coding: Option<Coding>,
    /// Names of tensors in the files, if they differ from those of their states.
    renamed: BTreeMap<String, String>,
    /// Tensors that are no part of the graph.
    left_out: Tensors,
    /// The rank of several whose part of the weights it has; `None` where it has all.
    part: Option<RankPart>,
    /// Text to tokens, where the folder tells.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// Notes on converted, renamed or omitted parts, in sentences.
    pub notes: Vec<String>,
}

impl Pretrained {
    fn read_as(place: &Path, rank_of: Option<(&Mesh, usize)>) -> Result<Self, PretrainedError> {
        let mut source = PretrainedSource::read(place)?;
        let config = &source.config;
        let beside = source.folder.as_deref().unwrap_or(place);
        let architecture = Architecture::read(config, beside)?;
        let facts = architecture.facts();
        let labels = match facts.task {
            ModelTask::Classifier => Labels::read(config)?,
            ModelTask::Decoder | ModelTask::Encoder | ModelTask::Other => None,
        };
        let mut notes = architecture.notes(config, beside)?;
        let of_others = OtherLayout::read(config, source.folder.as_deref())?;
        let of_own = if of_others.is_none() { Coding::read(config)? } else { None };
        let codes = of_own.as_ref().filter(|coding| coding.coded().next().is_some());
        let mode = codes.map(|coding| coding.mode.clone());
        let mode = of_others.map(|layout| layout.name().to_owned()).or(mode);
        if let (Some(_), Some(mode)) = (rank_of, mode) {
            return Err(PretrainedError::Coded { mode });
        }
        let mut part = rank_of.map(|rank_of| RankPart::of(&architecture, rank_of)).transpose()?;
        let cuts = |name: &str, ty: &TensorType| part.as_ref()?.cuts(&facts, name, ty);
        let cuts: &Cuts<'_> = &cuts;
        let (mut stored, said) = source.weights(part.as_ref().map(|_| cuts))?;
        if let Some(part) = &mut part {
            part.note(&source.config, &stored);
        }
        let config = &source.config;
        let coding = match of_others {
            None => of_own,
            Some(layout) => {
                let float = architecture.whole()?;
                let formats = layout.restored(&stored.path, &mut stored.tensors, &mut notes)?;
                let own = |(name, format): (String, _)| (layer_of(&facts, &float, &name), format);
                let formats = formats.into_iter().map(own).collect();
                Some(Coding::of_others(config, layout.name(), &formats)?)
            }
        };
        let graph = match &part {
            Some(part) => part.declared().clone(),
            None => declared(coding.as_ref(), architecture.whole()?)?,
        };
        if let Some(coding) = &coding {
            coding.check_transforms(config, (&facts, &architecture.whole()?, &graph))?;
        }
        notes.extend(said);
        if stored.stored.contains(&DType::F64) {
            notes.push("weights are stored as f64 and rounded to f32".to_owned());
        }
        let sixteen = |dtype: &&DType| matches!(dtype, DType::F16 | DType::BF16);
        let narrow: Vec<String> =
            stored.stored.iter().filter(sixteen).map(DType::to_string).collect();
        let half = coding.as_ref().and_then(Coding::half);
        if let Some(half) = half {
            notes.push(format!("weights and operands of products are in {half}"));
        } else if !narrow.is_empty() {
            notes.push(format!(
                "weights are stored as {}; computing whole sequences widens them to f32",
                narrow.join(" and ")
            ));
        }
        let Fitted { mut tensors, renamed, left_out } =
            fit(&facts, &graph, stored.tensors, &mut notes);
        if let Some(coding) = &coding {
            let count = coding.coded().count();
            if count > 0 {
                notes.push(format!("{count} layers have codes: {}", coding.mode));
            }
            if of_others.is_none() {
                tensors = coding.restored(&stored.path, &architecture.whole()?, &graph, tensors)?;
            }
        }
        check_head(&architecture, &graph, (&tensors, &stored.path))?;
        let differences = Differences::but_for_width(&graph, &tensors);
        if !differences.is_empty() {
            let differences = match &part {
                Some(part) => part.in_files(differences),
                None => differences,
            };
            return Err(ParametersError::Different { path: stored.path, differences }.into());
        }
        let tokenizer = match facts.vocabulary {
            Some(vocabulary) => source.tokenizer(vocabulary)?,
            None => None,
        };
        let ends = source.ends()?;
        let PretrainedSource { config, folder, .. } = source;
        Ok(Self {
            name: named(place),
            folder,
            config: plain_config(&architecture, coding.as_ref(), &config),
            architecture,
            described: config,
            labels,
            weights: tensors,
            initial_std: None,
            coding,
            renamed,
            left_out,
            part,
            tokenizer,
            ends,
            notes,
        })
    }

    /// The same with separate weights for the head, if it shares those of the embedding.
    #[must_use]
    pub fn untied(mut self) -> Self {
        let facts = self.architecture.facts();
        if self.architecture.untie()
            && let (Some(tokens), Some(head)) = (facts.tokens, facts.head_weight())
            && let Some(table) = self.weights.get(tokens)
        {
            self.left_out.remove(&head);
            self.weights.insert(head, table.clone());
        }
        self
    }

    /// The same with these weights in place of its own, each rounded to the type of the weight that
    /// it replaces.
    #[must_use]
    pub fn retrained(mut self, weights: &Tensors) -> Self {
        if self.initial_std.take().is_some() {
            self.weights = weights.clone();
        }
        for (name, before) in &mut self.weights {
            if let Some(weight) = weights.get(name) {
                *before = weight.convert(before.ty().dtype);
            }
        }
        let facts = self.architecture.facts();
        if let Some(head) = facts.head_weight().filter(|_| facts.tied) {
            // A copy of the embedding's weights, which have changed. `transformers` writes none.
            self.left_out.remove(&head);
        }
        self
    }

    /// This model with the codes that `quantize` made of its graph.
    pub fn with_codes(&self, quantized: &Graph, coding: Coding) -> Self {
        let tensor = |state: &overdrive_ir::StateDecl| match &state.init {
            Init::Widened(tensor) => tensor.clone(),
            init => init.tensor(&state.name, quantized.ty(state.value)),
        };
        let states = quantized.states().iter();
        let weights = states.map(|state| (state.name.clone(), tensor(state))).collect();
        Self { weights, coding: Some(coding), ..self.clone() }
    }

    fn loaded(&self, graph: Graph) -> Graph {
        if let Some(std) = self.initial_std {
            return Self::beginning(graph, std);
        }
        graph.with_initial_values(|name, ty| match self.weights.get(name) {
            None => Init::ZEROS,
            Some(w) if w.ty() == ty => Init::Value(w.clone()),
            Some(w) if w.ty().dtype.bits() > ty.dtype.bits() => Init::Value(w.convert(ty.dtype)),
            Some(w) => Init::Widened(w.clone()),
        })
    }

    /// Whether it has no weights yet, so that its states are drawn at random.
    pub fn is_new(&self) -> bool {
        self.initial_std.is_some()
    }

    /// Its coding, if a layer has codes: not of a folder whose weights are all floats.
    pub fn codes(&self) -> Option<&Coding> {
        self.coding.as_ref().filter(|coding| coding.coded().next().is_some())
    }

    /// Whether a state holds codes, or something beside them.
    fn is_coded(&self, state: &str) -> bool {
        let holds = |layer: &String| {
            state.strip_prefix(layer.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        self.codes().is_some_and(|coding| coding.coded().any(holds))
    }

    /// The 16-bit format that most of the model's numbers are stored in, if one is. Layers with
    /// codes do not count.
    pub fn stored_half(&self) -> Option<DType> {
        let floats = || self.weights.iter().filter(|(name, _)| !self.is_coded(name));
        let numbers = |dtype: DType| -> usize {
            let of_it = floats().filter(|(_, w)| w.ty().dtype == dtype);
            of_it.map(|(_, w)| w.ty().elements()).sum()
        };
        let all: usize = floats().map(|(_, w)| w.ty().elements()).sum();
        [DType::F16, DType::BF16].into_iter().find(|&half| 2 * numbers(half) > all)
    }

    /// That format, if a device decodes in it, or if the folder says that its products are in it. A
    /// processor multiplies codes with activations in f32.
    pub fn native_half(&self, device: &Description) -> Option<DType> {
        if let (Some(coding), None) = (&self.coding, self.codes()) {
            return coding.half();
        }
        let half = self.stored_half().filter(|half| device.native_halves.contains(half));
        half.filter(|_| self.codes().is_none() || device.replays)
    }

    /// The model of whole sequences: dimensions `batch` and `tokens`.
    ///
    /// # Errors
    /// Never after [`Self::read`], which has built the same graph. Always after
    /// [`Self::read_part`].
    pub fn template(&self) -> Result<Template, GraphError> {
        if self.part.is_some() {
            return Err(GraphError {
                op: "template".into(),
                scope: self.name.clone(),
                expected: "all weights of the model".into(),
                found: "the part of one rank".into(),
                remedy: "read the whole folder".into(),
            });
        }
        let facts = self.architecture.facts();
        let sizes = facts.extents.iter().map(|extent| (extent.name.to_owned(), extent.size));
        let limits =
            facts.extents.iter().filter_map(|extent| Some((extent.name.to_owned(), extent.most?)));
        Ok(Template {
            name: self.name.clone(),
            graph: self.loaded(declared(self.coding.as_ref(), self.architecture.whole()?)?),
            dimensions: sizes.collect(),
            limits: limits.collect(),
            vocabulary: facts.vocabulary,
            columns: None,
            config: self.config.clone(),
        })
    }
}

/// The name of a model: that of its folder or file.
fn named(place: &Path) -> String {
    let path = place.canonicalize().ok();
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| place.display().to_string())
}

/// The config.json of a model whose graph is all that it describes and no more.
fn plain_config(
    architecture: &Architecture,
    coding: Option<&Coding>,
    config: &Config,
) -> Option<Value> {
    let is_other = architecture.task() == ModelTask::Other;
    (!architecture.pools() && coding.is_none() && !is_other).then(|| config.to_json())
}

/// Errs where the weights of a classifier's head are not there: the folder has its encoder alone.
fn check_head(
    architecture: &Architecture,
    graph: &Graph,
    (tensors, path): (&Tensors, &Path),
) -> Result<(), FormatError> {
    let layers = architecture.classifier();
    let is_of_head = |name: &str| layers.iter().any(|layer| name.starts_with(&format!("{layer}.")));
    let mut states = graph.states().iter().map(|state| state.name.as_str());
    match states.find(|name| is_of_head(name) && !tensors.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(FormatError::Invalid {
            path: path.to_owned(),
            place: name.to_owned(),
            expected: "the head that `architectures` of config.json names".to_owned(),
            found: "no such tensor".to_owned(),
            remedy: "fetch the whole folder again, or name the class of the encoder there, \
                     `BertModel` say, to read hidden states"
                .to_owned(),
        }),
    }
}

/// The graph with codes where there is a coding.
fn declared(coding: Option<&Coding>, graph: Graph) -> Result<Graph, GraphError> {
    match coding {
        Some(coding) => overdrive_passes::declare(&graph, &coding.layers),
        None => Ok(graph),
    }
}
