//! MODEL on the command line: the name of a built-in model, or a folder that `train` or `quantize` wrote.

use crate::failure::Failure;
use overdrive::formats::ModelFolder;
use overdrive::models;
use overdrive::studies::Template;
use std::path::Path;

/// The model that the user named; where one is both, the built-in (`./name` is the folder).
pub(crate) fn load(model: &str) -> Result<Template, Failure> {
    let unknown = match models::find(model) {
        Ok(built_in) => return Template::built_in(built_in).map_err(Failure::harness),
        Err(unknown) => unknown,
    };
    let path = Path::new(model);
    if path.is_dir() {
        return match ModelFolder::is_at(path) {
            true => Ok(ModelFolder::read(path).map_err(Failure::bad_input)?.into()),
            false => Err(Failure::bad_input(format!(
                "the folder `{model}` holds no model: expected config.json, graph.txt and model.safetensors, as `overdrive \
                 train` and `overdrive quantize` write them"
            ))),
        };
    }
    if model.contains(std::path::MAIN_SEPARATOR) {
        return Err(Failure::bad_input(format!("no model at `{model}`: expected a folder that holds one")));
    }
    Err(Failure::bad_input(unknown))
}
