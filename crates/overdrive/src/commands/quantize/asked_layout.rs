//! `--export`: the layout that is asked for, and the model with the scales that it holds.
//!
//! A layout may hold other scales than a mode finds. GPTQ and AWQ hold f16, and Model Optimizer has
//! one scale of the tensor for layers that engines join. Scales are changed before the model is
//! judged, so that its figures are those of the written weights. Codes stay what the mode found.

use super::chosen::Chosen;
use super::file;
use super::layout::Layout;
use super::subject::Subject;
use crate::cli::Quantize;
use crate::failure::Failure;
use overdrive::formats::int4::f16_scales;
use overdrive::ir::{Graph, Init};
use overdrive::passes::{MODES, QuantizationMode};
use overdrive::studies::pretrained::{Coding, Pretrained};
use serde_json::Value;
use std::collections::BTreeMap;

/// The layout that was asked for, if the mode, the model and the place go with it.
pub(super) fn asked(
    arguments: &Quantize,
    modes: &[&QuantizationMode],
    subject: &Subject,
) -> Result<Option<Layout>, Failure> {
    let Some(layout) = arguments.export.map(Layout::from) else { return Ok(None) };
    if let Some(mode) = modes.iter().find(|mode| !layout.holds(mode)) {
        let known: Vec<&str> =
            MODES.iter().filter(|mode| layout.holds(mode)).map(|mode| mode.name).collect();
        return Err(Failure::bad_input(format!(
            "--export {}: expected --mode {}, whose codes it holds, found `{}`; leave out \
             --export to write this mode",
            layout.name(),
            known.join(", "),
            mode.name
        )));
    }
    if let Some(path) = arguments.out.as_deref().filter(|path| file::is_file(path)) {
        return Err(Failure::bad_input(format!(
            "--export {}: expected a folder, -o DIR, found the file `{}`; leave out --export \
             to write that",
            layout.name(),
            path.display()
        )));
    }
    layout.check(subject)?;
    Ok(Some(layout))
}

impl Layout {
    /// Errs unless it has layers of this model.
    pub(in crate::commands) fn check(self, subject: &Subject) -> Result<(), Failure> {
        let model = self.published(subject)?;
        let checked = match self {
            Self::Int4(format) => model.check_int4(format),
            Self::ModelOpt => model.check_modelopt(),
        };
        checked.map_err(Failure::bad_input)
    }

    fn published(self, subject: &Subject) -> Result<&Pretrained, Failure> {
        subject.published().ok_or_else(|| {
            Failure::bad_input(format!(
                "--export {}: expected a model in Hugging Face's format or a .gguf file, found \
                 `{}`; leave out --export",
                self.name(),
                subject.template.name
            ))
        })
    }

    /// The chosen model with the scales that the layout holds.
    pub(in crate::commands) fn held(
        self,
        subject: &Subject,
        mut chosen: Chosen,
    ) -> Result<Chosen, Failure> {
        let coding = Coding::of(&chosen.name, &chosen.made, Value::Null);
        let (model, graph) = (self.published(subject)?, chosen.made.graph.clone());
        chosen.made.graph = match self {
            Self::Int4(format) => {
                model.int4_group(&coding, format).map_err(Failure::bad_input)?;
                self.in_f16(graph, &coding)?
            }
            Self::ModelOpt => model.joined_scales(graph, &coding).map_err(Failure::bad_input)?,
        };
        Ok(chosen)
    }

    fn in_f16(self, graph: Graph, coding: &Coding) -> Result<Graph, Failure> {
        let begin: BTreeMap<String, Init> =
            graph.states().iter().map(|state| (state.name.clone(), state.init.clone())).collect();
        let mut lost = None;
        let is_scale = |name: &str| {
            let layer = name.strip_suffix(".weight_scale");
            layer.is_some_and(|layer| coding.layers.contains_key(layer))
        };
        let graph = graph.with_initial_values(|name, ty| {
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
        match lost {
            None => Ok(graph),
            Some((name, scale)) => Err(Failure::bad_input(format!(
                "--export {}: `{name}`: expected scales that f16 holds, found {scale}; leave out \
                 --export, or give another --group",
                self.name()
            ))),
        }
    }
}
