//! `overdrive export`: the model for other engines.

use crate::cli::Export;
use crate::failure::Failure;
use crate::model;
use overdrive::bench::exit::Exit;
use overdrive::formats::{self, onnx};

pub(crate) fn export(arguments: &Export) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let graph = match &arguments.inputs {
        Some(file) => model.fitting(&formats::read(file).map_err(Failure::bad_input)?)?,
        None => model.bind(&arguments.shapes.iter().cloned().collect())?.graph,
    };
    onnx::write(&arguments.onnx, &graph).map_err(Failure::bad_input)?;
    println!("{} as ONNX: {}", graph.name(), arguments.onnx.display());
    Ok(Exit::Fine)
}
