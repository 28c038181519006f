//! The model of a file of ONNX at the sizes that calibrate and judge.

use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::note;
use overdrive::studies::Template;
use std::collections::BTreeMap;

/// Samples of a batch, unless the user says otherwise.
const BATCH: usize = 8;

/// The model of a file at the sizes that calibrate and judge.
pub(super) fn template(
    model: &Model,
    shapes: &[(String, usize)],
) -> Result<(Template, BTreeMap<String, usize>), Failure> {
    let mut sizes: BTreeMap<String, usize> = shapes.iter().cloned().collect();
    if let Some(batch) = model.batch_dimension()?.filter(|batch| !sizes.contains_key(batch)) {
        note!("note: calibrated on batches of {BATCH}; --shape {batch}=N takes another size");
        sizes.insert(batch, BATCH);
    }
    let graph = model.built(|build| build(&sizes))??;
    let template = Template {
        name: model.name()?,
        graph,
        dimensions: BTreeMap::new(),
        limits: BTreeMap::new(),
        vocabulary: None,
        config: None,
        columns: None,
    };
    Ok((template, sizes))
}
