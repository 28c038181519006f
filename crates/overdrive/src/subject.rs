//! From the arguments that say which graph is meant to that graph and the device that it is for.

use crate::cli::Subject;
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::model;
use overdrive::ir::Graph;
use overdrive::passes::{Recipe, precision};
use overdrive::studies::Workload;

/// The workload, its graph with contractions in the format asked for, and the device.
pub(crate) fn open(subject: &Subject) -> Result<(Workload, Graph, Opened), Failure> {
    let model = model::load(&subject.model)?;
    let batch = subject.batch.map(|n| model.batch(n)).transpose()?;
    let workload = model.bind(&subject.shapes.iter().cloned().chain(batch).collect())?;
    let opened = devices::open(&subject.machine)?;
    let recipe = Recipe { contractions: subject.dtype.into() };
    let graph = precision(&workload.graph, &recipe).map_err(Failure::harness)?;
    Ok((workload, graph, opened))
}
