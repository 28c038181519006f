//! Built-in language models at a batch, with their loss.

use overdrive_bench::failure::Failure;
use overdrive_ir::{Dim, Graph, GraphError};
use overdrive_models::BuiltInModel;
use overdrive_passes::bind;
use overdrive_train::data::Target;
use overdrive_train::{TrainError, with_loss};

/// Ids are drawn below this: every vocabulary has them.
pub(crate) const IDS: usize = 256;

fn found(model: &str) -> &'static BuiltInModel {
    overdrive_models::find(model).expect("cases name built-in models")
}

/// The forward of so many samples, with its loss.
pub(crate) fn forward(model: &str, batch: usize) -> Result<Graph, Failure> {
    let forward = (found(model).build)().map_err(of_graph)?;
    let bound = bind(&forward, &[("batch".to_owned(), batch)].into()).map_err(of_graph)?;
    with_loss(&bound, Target::Classes).map_err(of_graph)
}

/// T: the tokens of a sample.
pub(crate) fn tokens(model: &str) -> usize {
    let forward = (found(model).build)().expect("built-in models build");
    let ty = forward.ty(forward.inputs()[0].value);
    ty.shape.0.get(1).and_then(Dim::size).expect("language models have a context")
}

pub(super) fn of_graph(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}

/// Why a step cannot be made.
pub(crate) fn of_training(error: TrainError) -> Failure {
    Failure::unsupported(error.to_string())
}
