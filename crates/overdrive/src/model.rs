//! MODEL on the command line: the name of a built-in model, a folder that `train` or `quantize` wrote, or a folder in
//! Hugging Face's format.

use crate::failure::Failure;
use overdrive::formats::ModelFolder;
use overdrive::models;
use overdrive::studies::Template;
use overdrive::studies::pretrained::Pretrained;
use std::path::Path;

/// A model with what its source told of it.
pub(crate) enum Model {
    /// A graph, and what is needed to make a workload of it.
    Template(Template),
    /// A published architecture with its weights, and what turns text into tokens.
    Pretrained(Box<Pretrained>),
}

impl Model {
    /// What can be measured.
    pub(crate) fn template(&self) -> Result<Template, Failure> {
        match self {
            Self::Template(template) => Ok(template.clone()),
            Self::Pretrained(pretrained) => pretrained.template().map_err(Failure::harness),
        }
    }
}

/// The graph of the model that the user named.
pub(crate) fn load(model: &str) -> Result<Template, Failure> {
    open(model)?.template()
}

/// The model that the user named; where one is both, the built-in (`./name` is the folder).
pub(crate) fn open(model: &str) -> Result<Model, Failure> {
    let unknown = match models::find(model) {
        Ok(built_in) => return Template::built_in(built_in).map(Model::Template).map_err(Failure::harness),
        Err(unknown) => unknown,
    };
    let path = Path::new(model);
    if path.is_dir() {
        return folder(path);
    }
    if model.contains(std::path::MAIN_SEPARATOR) {
        return Err(Failure::bad_input(format!("no model at `{model}`: expected a folder that holds one")));
    }
    Err(Failure::bad_input(unknown))
}

fn folder(path: &Path) -> Result<Model, Failure> {
    if ModelFolder::is_at(path) {
        let read = ModelFolder::read(path).map_err(Failure::bad_input)?;
        return Ok(Model::Template(read.into()));
    }
    if !Pretrained::is_at(path) {
        return Err(Failure::bad_input(format!(
            "the folder `{}` holds no model: expected config.json, graph.txt and model.safetensors, as `overdrive train` and \
             `overdrive quantize` write them, or config.json and safetensors in Hugging Face's format",
            path.display()
        )));
    }
    let read = Pretrained::read(path).map_err(Failure::bad_input)?;
    read.notes.iter().for_each(|note| eprintln!("note: {note}"));
    Ok(Model::Pretrained(Box::new(read)))
}
