//! The model that `quantize` writes, read back before a figure is printed.

use super::chosen::{Chosen, compared};
use super::judged::Samples;
use super::layout::Layout;
use super::subject::Subject;
use super::{file, published};
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::terminal::tell;
use overdrive::formats::onnx::WeightPlace;
use overdrive::formats::{ModelConfig, ModelFolder};
use overdrive::ir::{Backend, Tensor};
use overdrive::passes::bind;
use overdrive::studies::Template;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// The model to write.
#[derive(Copy, Clone)]
pub(in crate::commands) struct Written<'a> {
    pub(in crate::commands) backend: &'a dyn Backend,
    pub(in crate::commands) subject: &'a Subject,
    pub(in crate::commands) samples: &'a Samples<'a>,
    pub(in crate::commands) chosen: &'a Chosen,
    /// Outputs of the float model, and of the quantized one in memory.
    pub(in crate::commands) outputs: [&'a [Vec<Tensor>]; 2],
    /// The layout of a published model's codes, if it is not that of compressed-tensors.
    pub(in crate::commands) layout: Option<Layout>,
}

impl Written<'_> {
    /// Writes and checks the folder; gives the bytes of its files.
    pub(in crate::commands) fn folder(&self, folder: &Path) -> Result<u64, Failure> {
        let Self { backend, subject, samples, chosen, outputs, layout } = *self;
        match &subject.model {
            Model::Pretrained(model) => published::write(folder, model, (chosen, layout))?,
            Model::Template(_) | Model::Onnx(_) => write(folder, &subject.template, chosen)?,
        }
        if let Model::Onnx(_) = &subject.model {
            self.file(Path::new(file::NAME), &folder.join(file::NAME))?;
        }
        check_written(backend, (folder, &subject.template), &samples.compared, outputs[1])?;
        folder_bytes(folder)
    }

    /// Writes and checks the file, which errors call `shown`; gives its bytes.
    pub(in crate::commands) fn file(&self, shown: &Path, path: &Path) -> Result<u64, Failure> {
        let Self { backend, subject, samples, chosen, outputs, .. } = *self;
        let freed = file::encode(shown, subject, chosen)?;
        freed.note();
        let said = freed.said();
        let bytes = freed.file.write(path, WeightPlace::Within).map_err(Failure::harness)?;
        file::check(backend, (path, subject, chosen), &samples.compared, outputs)?;
        tell!("`{}` takes {said}", shown.display())?;
        Ok(bytes)
    }
}

/// Writes the model with its recipe.
fn write(folder: &Path, template: &Template, chosen: &Chosen) -> Result<(), Failure> {
    let Chosen { name, quantization, made, .. } = chosen;
    let remarks = |of: &[overdrive::passes::Skipped]| -> BTreeMap<String, String> {
        of.iter().map(|remark| (remark.layer.clone(), remark.reason.clone())).collect()
    };
    let (skipped, simplified) = (remarks(&made.skipped), remarks(&made.simplified));
    let recipe = json!({
        "mode": name, "quantization": quantization, "skipped": skipped, "simplified": simplified,
    });
    let config = ModelConfig {
        name: template.name.clone(),
        dimensions: template.dimensions.clone(),
        vocabulary: template.vocabulary,
        columns: template.columns.clone(),
        recipe: BTreeMap::from([("quantization".to_owned(), recipe)]),
    };
    ModelFolder { config, graph: made.graph.clone() }.write(folder).map_err(Failure::bad_input)
}

/// Errs unless the folder, read back, gives these very outputs.
fn check_written(
    backend: &dyn Backend,
    (folder, template): (&Path, &Template),
    held_out: &[Vec<Tensor>],
    found: &[Vec<Tensor>],
) -> Result<(), Failure> {
    let written = model::read(folder)?.template()?;
    let graph = bind(&written.graph, &template.dimensions).map_err(Failure::harness)?;
    let again = compared(backend, ("written", &graph), held_out)?;
    let same =
        again.iter().flatten().zip(found.iter().flatten()).all(|(a, b)| a.bytes() == b.bytes());
    if same {
        Ok(())
    } else {
        Err(Failure::harness("the model that was written gives other outputs"))
    }
}

/// Bytes of all files of a folder.
fn folder_bytes(folder: &Path) -> Result<u64, Failure> {
    let entries = std::fs::read_dir(folder).map_err(Failure::harness)?;
    entries
        .map(|entry| entry.and_then(|entry| entry.metadata()).map(|file| file.len()))
        .sum::<Result<u64, _>>()
        .map_err(Failure::harness)
}
