//! `overdrive export`: the model for other engines.

use crate::cli::Export;
use crate::failure::Failure;
use crate::model;
use overdrive::bench::exit::Exit;
use overdrive::formats::onnx;

pub(crate) fn export(arguments: &Export) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let workload = model.bind(&arguments.shapes.iter().cloned().collect())?;
    onnx::write(&arguments.onnx, &workload.graph).map_err(Failure::bad_input)?;
    println!("{} as ONNX: {}", workload.key, arguments.onnx.display());
    Ok(Exit::Fine)
}
