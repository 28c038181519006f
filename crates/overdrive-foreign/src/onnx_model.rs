//! The file for an engine that reads ONNX: the user's own file where the graph is the one in it,
//! else our export.

use crate::OriginalFile;
use crate::host_backend::unsupported;
use overdrive_formats::onnx::{self, Dialect};
use overdrive_ir::{BackendError, Graph};
use std::path::Path;
use std::time::Instant;

/// A model in ONNX.
pub(crate) enum OnnxModel<'a> {
    /// A file of the user's, whose named dimensions have these sizes.
    File(&'a OriginalFile),
    /// The bytes of one that we wrote.
    Written(Vec<u8>),
}

/// A model in ONNX, and how long it took to write in ns. Our export has the ops that the engine
/// reads.
pub(crate) fn of<'a>(
    (backend, dialect): (&str, Dialect),
    graph: &Graph,
    original: Option<&'a OriginalFile>,
) -> Result<(OnnxModel<'a>, u64), BackendError> {
    if let Some(original) = original.filter(|original| original.graph == *graph) {
        return Ok((OnnxModel::File(original), 0));
    }
    let start = Instant::now();
    let bytes = onnx::encode(Path::new(graph.name()), graph, dialect);
    let bytes = bytes.map_err(|e| unsupported(backend, "export to ONNX", graph.name(), e))?;
    Ok((OnnxModel::Written(bytes), start.elapsed().as_nanos() as u64))
}
