//! MODEL on the command line. It is one of:
//! - the name of a built-in model;
//! - a folder that `train` or `quantize` wrote;
//! - a folder in Hugging Face's format;
//! - a file of GGUF;
//! - an ONNX file.
//!
//! A template binds its named dimensions afterwards. An ONNX file is read for given dimensions,
//! since its shape arithmetic has no answer before. It is also read for given values of those
//! inputs that decide shapes.
//!
//! Long because every form of MODEL is told apart and opened here.

use crate::failure::Failure;
use crate::freeing::{BuildAtSizes, NamedSize};
use crate::terminal::note;
use overdrive::bench::work::Items;
use overdrive::files;
use overdrive::formats::huggingface::has_weights;
use overdrive::formats::onnx::{self, Binding, Folding};
use overdrive::formats::{FormatError, ModelFolder, Tensors};
use overdrive::ir::{Communicator, Dim, Graph, Init, TensorType};
use overdrive::models;
use overdrive::passes::recognise;
use overdrive::studies::pretrained::{Pretrained, PretrainedError};
use overdrive::studies::{Template, Workload};
use overdrive::train::trained;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A model whose named dimensions have no sizes yet.
pub(crate) enum Model {
    /// A built-in model, or a folder of ours.
    Template(Box<Template>),
    /// A published architecture with its weights, and what turns text into tokens.
    Pretrained(Box<Pretrained>),
    /// A file of ONNX.
    Onnx(Box<onnx::Model>),
}

impl Model {
    /// The graph with named dimensions, of a model that has one before it has inputs.
    pub(crate) fn template(&self) -> Result<Template, Failure> {
        match self {
            Self::Template(template) => Ok((**template).clone()),
            Self::Pretrained(pretrained) => pretrained.template().map_err(Failure::harness),
            Self::Onnx(model) => Err(Failure::bad_input(format!(
                "`{}` is a file of ONNX, which is read for given sizes: expected a built-in model \
                 or a folder",
                model.name()
            ))),
        }
    }

    /// Its name in results.
    pub(crate) fn name(&self) -> Result<String, Failure> {
        match self {
            Self::Onnx(model) => Ok(model.name()),
            Self::Template(_) | Self::Pretrained(_) => Ok(self.template()?.name),
        }
    }

    /// The ONNX file that it was read from, if any, for engines that read such files.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Template(_) | Self::Pretrained(_) => None,
            Self::Onnx(model) => Some(model.path()),
        }
    }

    /// The named dimension that is the batch: the one that stands first in every input.
    pub(crate) fn batch_dimension(&self) -> Result<Option<String>, Failure> {
        let types = self.input_types()?;
        let first = |ty: &TensorType| ty.shape.0.first().and_then(named);
        let batch = types.first().and_then(first);
        Ok(batch.filter(|batch| types.iter().all(|ty| first(ty).as_ref() == Some(batch))))
    }

    /// `--batch N` as the size of a named dimension, whatever the model calls its batch.
    pub(crate) fn batch(&self, size: u32) -> Result<(String, usize), Failure> {
        let types = self.input_types()?;
        let names: BTreeSet<String> =
            types.iter().flat_map(|ty| &ty.shape.0).filter_map(named).collect();
        let called_so = names.contains("batch").then(|| "batch".to_owned());
        if let Some(name) =
            called_so.map_or_else(|| self.batch_dimension(), |name| Ok(Some(name)))?
        {
            return Ok((name, size as usize));
        }
        let found = match names.len() {
            0 => "the sizes of all its inputs are fixed; leave out --batch".to_owned(),
            _ => {
                let sizes: Vec<String> =
                    names.iter().map(|name| format!("--shape {name}={size}")).collect();
                format!("give the size that is meant: {}", sizes.join(" or "))
            }
        };
        Err(Failure::bad_input(format!(
            "--batch: expected one named dimension that stands first in every input, found none; \
             {found}"
        )))
    }

    fn input_types(&self) -> Result<Vec<TensorType>, Failure> {
        match self {
            Self::Onnx(model) => {
                let inputs = model.inputs().map_err(Failure::bad_input)?;
                Ok(inputs.into_iter().map(|(_, ty)| ty).collect())
            }
            Self::Template(_) | Self::Pretrained(_) => {
                let graph = self.template()?.graph;
                Ok(graph.inputs().iter().map(|port| graph.ty(port.value).clone()).collect())
            }
        }
    }

    /// Named dimensions, the batch first, with the sizes that they have where nobody says
    /// otherwise; a file of ONNX gives none.
    pub(crate) fn dimensions(&self) -> Result<Vec<NamedSize>, Failure> {
        let batch = self.batch_dimension()?;
        let usual = match self {
            Self::Onnx(_) => BTreeMap::new(),
            Self::Template(_) | Self::Pretrained(_) => self.template()?.dimensions,
        };
        let types = self.input_types()?;
        let mut names: Vec<String> = batch.into_iter().collect();
        for name in types.iter().flat_map(|ty| &ty.shape.0).filter_map(named) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names.into_iter().map(|name| (name.clone(), usual.get(&name).copied())).collect())
    }

    /// Hands `with` what builds the graph at given sizes of all named dimensions.
    pub(crate) fn built<T>(&self, with: impl FnOnce(BuildAtSizes<'_>) -> T) -> Result<T, Failure> {
        Ok(match self {
            Self::Template(_) | Self::Pretrained(_) => {
                let template = self.template()?;
                with(&|sizes| {
                    let mut all = template.dimensions.clone();
                    all.extend(sizes.clone());
                    template.graph_of(&all).map_err(Failure::bad_input)
                })
            }
            Self::Onnx(model) => with(&|sizes| {
                let (sizes, folding) = (sizes.clone(), Folding::Lists);
                let binding = Binding { sizes, folding, ..Binding::default() };
                raised(model.graph(&binding).map_err(Failure::bad_input)?)
            }),
        })
    }

    /// Whether a dimension of this name can be given a size.
    pub(crate) fn has_dimension(&self, name: &str) -> bool {
        self.template().is_ok_and(|template| template.dimensions.contains_key(name))
    }

    /// The workload in which named dimensions have `sizes` where given, else their defaults.
    pub(crate) fn bind(&self, sizes: &BTreeMap<String, usize>) -> Result<Workload, Failure> {
        match self {
            Self::Template(_) | Self::Pretrained(_) => {
                self.template()?.bind(sizes).map_err(Failure::bad_input)
            }
            Self::Onnx(model) => {
                let binding = Binding { sizes: sizes.clone(), ..Binding::default() };
                let graph = raised(model.graph(&binding).map_err(Failure::bad_input)?)?;
                let dimensions = sizes.iter().map(|(name, &size)| (name.as_str(), size));
                // Nothing in the file says which dimension is the batch, so that a call is what is
                // counted.
                let items = Some(Items { per_call: 1, name: "calls".to_owned() });
                Ok(Workload { items, ..Workload::new(&model.name(), dimensions, graph) })
            }
        }
    }

    /// The workload whose dimensions, and values that decide shapes, are those of these inputs.
    pub(crate) fn workload_of(&self, inputs: &Tensors) -> Result<Workload, Failure> {
        let Self::Onnx(model) = self else {
            let template = self.template()?;
            let graph = &template.graph;
            let ports =
                graph.inputs().iter().map(|port| (port.name.as_str(), graph.ty(port.value)));
            return template.bind(&sizes_of(ports, inputs)?).map_err(Failure::bad_input);
        };
        let ports = model.inputs().map_err(Failure::bad_input)?;
        let sizes = sizes_of(ports.iter().map(|(name, ty)| (name.as_str(), ty)), inputs)?;
        let dimensions = sizes.iter().map(|(name, &size)| (name.as_str(), size));
        let items = Some(Items { per_call: 1, name: "calls".to_owned() });
        Ok(Workload { items, ..Workload::new(&model.name(), dimensions, self.fitting(inputs)?) })
    }

    /// The graph whose dimensions, and values that decide shapes, are those of these inputs.
    pub(crate) fn fitting(&self, inputs: &Tensors) -> Result<Graph, Failure> {
        match self {
            Self::Template(_) | Self::Pretrained(_) => {
                let template = self.template()?;
                let graph = &template.graph;
                let ports =
                    graph.inputs().iter().map(|port| (port.name.as_str(), graph.ty(port.value)));
                template.graph_of(&sizes_of(ports, inputs)?).map_err(Failure::bad_input)
            }
            Self::Onnx(model) => raised(fitting(model, inputs)?),
        }
    }
}

fn named(dim: &Dim) -> Option<String> {
    match dim {
        Dim::Named(name) => Some(name.to_string()),
        Dim::Size(_) => None,
    }
}

/// Ops in place of what exporters wrote them out as: kernels take attention, norms and packed
/// weights whole.
pub(crate) fn raised(graph: Graph) -> Result<Graph, Failure> {
    recognise(&graph).map_err(Failure::harness)
}

/// Reads the graph, binding the value of an input whenever a shape turns out to depend on it.
fn fitting(model: &onnx::Model, inputs: &Tensors) -> Result<Graph, Failure> {
    let ports = model.inputs().map_err(Failure::bad_input)?;
    let sizes = sizes_of(ports.iter().map(|(name, ty)| (name.as_str(), ty)), inputs)?;
    let mut binding = Binding { sizes, ..Binding::default() };
    loop {
        match model.graph(&binding) {
            Err(FormatError::Undecided { inputs: named, .. })
                if named.iter().any(|name| {
                    inputs.contains_key(name) && !binding.values.contains_key(name)
                }) =>
            {
                for (name, value) in named.iter().filter_map(|name| Some((name, inputs.get(name)?)))
                {
                    binding.values.insert(name.clone(), value.clone());
                }
            }
            outcome => {
                for name in binding.values.keys() {
                    note!("note: input `{name}` decides shapes: the model is read for its value");
                }
                return outcome.map_err(Failure::bad_input);
            }
        }
    }
}

/// Sizes of named dimensions, read off the inputs.
fn sizes_of<'t>(
    ports: impl Iterator<Item = (&'t str, &'t TensorType)>,
    inputs: &Tensors,
) -> Result<BTreeMap<String, usize>, Failure> {
    let mut sizes = BTreeMap::new();
    for (place, ty) in ports {
        let found = input(inputs, place, ty)?.ty();
        if found.rank() != ty.rank() {
            return Err(Failure::bad_input(format!(
                "input `{place}`: expected {ty}, found {found}"
            )));
        }
        for (dim, size) in ty.shape.0.iter().zip(found.sizes()) {
            if let Dim::Named(name) = dim
                && let Some(before) =
                    sizes.insert(name.to_string(), size).filter(|&before| before != size)
            {
                let text = format!(
                    "input `{place}`: expected {name} = {before} as elsewhere, found {size}"
                );
                return Err(Failure::bad_input(text));
            }
        }
    }
    Ok(sizes)
}

/// The tensor of this name.
pub(crate) fn input<'t>(
    tensors: &'t Tensors,
    name: &str,
    ty: &TensorType,
) -> Result<&'t overdrive::ir::Tensor, Failure> {
    tensors.get(name).ok_or_else(|| {
        let names: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        Failure::bad_input(format!("input `{name}` of {ty} is missing: the file holds {found}"))
    })
}

/// With which weights a built-in model begins.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum InitialWeights {
    /// The weights in the program, if there are any: users mean these by the name.
    Trained,
    /// Drawn from a seed: what training starts from.
    Drawn,
}

/// Before the name of a built-in model, where something of that name is in the folder too.
const BUILT_IN: &str = "builtin:";

/// The model that the user named. A name means the same weights in every command but `train`.
pub(crate) fn load(model: &str) -> Result<Model, Failure> {
    load_with(model, InitialWeights::Trained)
}

/// The model that the user named, to be trained: a built-in one begins anew, a folder goes on.
pub(crate) fn load_to_train(model: &str) -> Result<Model, Failure> {
    load_with(model, InitialWeights::Drawn)
}

/// The same, but a published architecture begins anew too.
pub(crate) fn load_from_scratch(model: &str) -> Result<Model, Failure> {
    if !is_published(model) {
        return load_to_train(model);
    }
    std::mem::forget(files::about(model));
    published(Pretrained::from_scratch(Path::new(model)))
}

/// Whether the user named a folder in Hugging Face's format that holds no weights.
pub(crate) fn lacks_weights(model: &str) -> bool {
    is_published(model) && Path::new(model).is_dir() && !has_weights(Path::new(model))
}

/// Whether training makes a folder in Hugging Face's format of what the user named.
pub(crate) fn is_trained_as_published(model: &str) -> bool {
    let name = model.strip_prefix(BUILT_IN).unwrap_or(model);
    is_published(model) || models::built_in_llama(name).is_some()
}

/// The model that the user named, to be decoded by several ranks: of a published one only the part
/// of this rank.
pub(crate) fn load_part(model: &str, rank: &dyn Communicator) -> Result<Model, Failure> {
    if !is_published(model) {
        return load(model);
    }
    std::mem::forget(files::about(model));
    let read = Pretrained::read_part(Path::new(model), (rank.mesh(), rank.rank()));
    published(read)
}

fn load_with(model: &str, weights: InitialWeights) -> Result<Model, Failure> {
    let path = Path::new(model);
    // Messages of this process are about this model from now on, except while another file is read.
    std::mem::forget(files::about(model));
    // One that a killed process left between two names is brought back, and then counts as there.
    files::recovered(path);
    let plain = model.strip_prefix(BUILT_IN);
    let unknown = match models::find(plain.unwrap_or(model)) {
        Ok(_) if plain.is_none() && path.exists() => {
            return Err(Failure::bad_input(format!(
                "`{model}` is a built-in model and stands in this folder too: write `./{model}` \
                 for what is in the folder, or \
                 `{BUILT_IN}{model}` for the built-in model"
            )));
        }
        Ok(found) => return built_in(found, weights),
        Err(unknown) if plain.is_some() => return Err(Failure::bad_input(unknown)),
        Err(unknown) => unknown,
    };
    if path.extension().is_some_and(|extension| extension == "onnx") {
        return onnx::Model::open(path)
            .map(|model| Model::Onnx(Box::new(model)))
            .map_err(Failure::bad_input);
    }
    if path.is_dir() {
        return read(path);
    }
    if is_gguf(path) && path.exists() {
        return read_published(path);
    }
    let is_path = model.contains(std::path::MAIN_SEPARATOR)
        || model.starts_with('.')
        || path.extension().is_some()
        || path.exists();
    if is_path {
        let found = if path.exists() { "a file of another kind" } else { "no such file or folder" };
        return Err(Failure::bad_input(format!(
            "no model at `{model}`: expected an .onnx or .gguf file, a folder that `overdrive \
             train` or \
             `overdrive quantize` wrote, or one in Hugging Face's format, found {found}"
        )));
    }
    Err(Failure::bad_input(format!("{unknown} (`{model}` is no file or folder either)")))
}

fn built_in(model: &models::BuiltInModel, weights: InitialWeights) -> Result<Model, Failure> {
    let name = model.name;
    if weights == InitialWeights::Drawn
        && let Some(new) = Pretrained::built_in(name).transpose()
    {
        return published(new);
    }
    let mut template = Template::built_in(model).map_err(Failure::harness)?;
    match (trained(name), weights) {
        (Some(trained), InitialWeights::Trained) => {
            note!("note: `{name}` has the trained weights that come with Overdrive");
            template.graph =
                template.graph.with_initial_values(|name, _| Init::Value(trained[name].clone()));
        }
        (Some(_), InitialWeights::Drawn) => {
            note!("note: `{name}` is trained anew; other commands take its trained weights");
        }
        (None, _) => {}
    }
    Ok(of_template(template))
}

fn of_template(template: Template) -> Model {
    Model::Template(Box::new(template))
}

/// Whether the user named a folder in Hugging Face's format, or a file of GGUF, whatever else is
/// wrong with it.
pub(crate) fn is_published(model: &str) -> bool {
    let path = Path::new(model);
    files::recovered(path);
    let is_ours = path.is_dir() && ModelFolder::is_at(path);
    path.exists() && !is_ours && Pretrained::is_at(path)
}

/// Notes that were said about models: each is said once.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// The model in a folder.
pub(crate) fn read(path: &Path) -> Result<Model, Failure> {
    let config = path.join("config.json");
    if config.exists() {
        // Failure to open the file is reported before faults of its content.
        files::open(&config).map_err(Failure::bad_input)?;
    }
    if ModelFolder::is_at(path) {
        let read = ModelFolder::read(path).map_err(Failure::bad_input)?;
        return Ok(of_template(read.into()));
    }
    if !Pretrained::is_at(path) {
        return Err(Failure::bad_input(format!(
            "the folder `{}` holds no model: expected config.json, graph.txt and \
             model.safetensors, as \
             `overdrive train` and `overdrive quantize` write them, or config.json and weights in \
             Hugging Face's format, or one .gguf file",
            path.display()
        )));
    }
    read_published(path)
}

fn read_published(path: &Path) -> Result<Model, Failure> {
    published(Pretrained::read(path))
}

fn published(read: Result<Pretrained, PretrainedError>) -> Result<Model, Failure> {
    let read = read.map_err(Failure::bad_input)?;
    // A command may read a model again, or the one that it made of it.
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for note in &read.notes {
        if said.insert(note.clone()) {
            note!("note: {note}");
        }
    }
    Ok(Model::Pretrained(Box::new(read)))
}
