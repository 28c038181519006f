//! `quantize --export gptq` and `--export awq`: int4 codes in layouts that more programs read than
//! compressed-tensors.
//!
//! Both formats have scales in f16. Scales are rounded before the model is judged, so that its
//! figures are those of the written weights. Codes stay what the mode found.

use super::chosen::Chosen;
use super::file;
use super::subject::Subject;
use crate::cli::Quantize;
use crate::failure::Failure;
use overdrive::formats::int4::{Int4Format, f16_scales};
use overdrive::ir::ops::quantized_linear::Activations;
use overdrive::ir::{DType, Granularity, Init, Symmetry};
use overdrive::passes::{MODES, QuantizationMode, Rounding};
use overdrive::studies::pretrained::{Coding, Pretrained};
use serde_json::Value;
use std::collections::BTreeMap;

/// The format that was asked for, if the mode, the model and the place go with it.
pub(super) fn asked(
    arguments: &Quantize,
    modes: &[&QuantizationMode],
    subject: &Subject,
) -> Result<Option<Int4Format>, Failure> {
    let Some(format) = arguments.export.map(Int4Format::from) else { return Ok(None) };
    let name = format.name();
    if let Some(mode) = modes.iter().find(|mode| !is_held(mode)) {
        let known: Vec<&str> =
            MODES.iter().filter(|mode| is_held(mode)).map(|mode| mode.name).collect();
        return Err(Failure::bad_input(format!(
            "--export {name}: expected --mode {}, whose codes it holds, found `{}`; leave out \
             --export to write this mode",
            known.join(", "),
            mode.name
        )));
    }
    if let Some(path) = arguments.out.as_deref().filter(|path| file::is_file(path)) {
        return Err(Failure::bad_input(format!(
            "--export {name}: expected a folder, -o DIR, found the file `{}`; leave out --export \
             to write that",
            path.display()
        )));
    }
    published(subject, format)?.check_int4(format).map_err(Failure::bad_input)?;
    Ok(Some(format))
}

/// Whether both formats hold the codes of a mode: of four bits, symmetric, alone.
fn is_held(mode: &QuantizationMode) -> bool {
    let scheme = mode.quantization().scheme;
    let weights = scheme.weights;
    weights.element == DType::I4
        && matches!(weights.block, Granularity::Group(_))
        && weights.symmetry == Symmetry::Symmetric
        && scheme.activations == Activations::Float
        && scheme.rounding != Rounding::Hqq
}

fn published(subject: &Subject, format: Int4Format) -> Result<&Pretrained, Failure> {
    subject.published().ok_or_else(|| {
        Failure::bad_input(format!(
            "--export {}: expected a model in Hugging Face's format or a .gguf file, found `{}`; \
             leave out --export",
            format.name(),
            subject.template.name
        ))
    })
}

/// The chosen model with the scales that the format holds.
pub(super) fn exported(
    format: Int4Format,
    subject: &Subject,
    mut chosen: Chosen,
) -> Result<Chosen, Failure> {
    let coding = Coding::of(&chosen.name, &chosen.made, Value::Null);
    published(subject, format)?.int4_group(&coding, format).map_err(Failure::bad_input)?;
    let graph = &chosen.made.graph;
    let begin: BTreeMap<String, Init> =
        graph.states().iter().map(|state| (state.name.clone(), state.init.clone())).collect();
    let mut lost = None;
    let is_scale = |name: &str| {
        let layer = name.strip_suffix(".weight_scale");
        layer.is_some_and(|layer| coding.layers.contains_key(layer))
    };
    let graph = graph.clone().with_initial_values(|name, ty| {
        let init = begin[name].clone();
        if !is_scale(name) {
            return init;
        }
        match f16_scales(&init.tensor(name, ty)) {
            Ok(scales) => Init::Value(scales),
            Err(scale) => {
                lost = Some((name.to_owned(), scale));
                init
            }
        }
    });
    if let Some((name, scale)) = lost {
        return Err(Failure::bad_input(format!(
            "--export {}: `{name}`: expected scales that f16 holds, found {scale}; leave out \
             --export, or give another --group",
            format.name()
        )));
    }
    chosen.made.graph = graph;
    Ok(chosen)
}
