//! The model that is quantized: a built-in model, a folder or a file, at given sizes.

use super::published::{self, Head};
use super::sized::template;
use crate::failure::Failure;
use crate::model::{self, Model};
use overdrive::bench::failure::Failure as Unable;
use overdrive::ir::{Backend, Tensor};
use overdrive::passes::{Additions, Preparation, Quantization, Quantized};
use overdrive::studies::Template;
use overdrive::studies::pretrained::Pretrained;
use overdrive::studies::quantization::{Going, apply_while};
use std::collections::BTreeMap;

/// The model.
pub(in crate::commands) struct Subject {
    /// As it was brought.
    pub(in crate::commands) model: Model,
    /// Its graph, unbound where the model has one.
    pub(in crate::commands) template: Template,
    /// Sizes for which a file of ONNX was read.
    pub(in crate::commands) sizes: BTreeMap<String, usize>,
    /// Layers that stay in float.
    stays: Vec<String>,
}

impl Subject {
    /// The model of this name; `shapes` are the sizes that the user gives.
    pub(in crate::commands) fn load(
        name: &str,
        shapes: &[(String, usize)],
        head: Head,
    ) -> Result<Self, Failure> {
        let model = match model::load(name)? {
            Model::Pretrained(model) => Model::Pretrained(published::open((name, head), *model)?),
            other => other,
        };
        Self::of(model, shapes, head)
    }

    /// The same of any model, also one that has codes already: it is not quantized again.
    pub(in crate::commands) fn load_any(
        name: &str,
        shapes: &[(String, usize)],
    ) -> Result<Self, Failure> {
        Self::of(model::load(name)?, shapes, Head::Float)
    }

    fn of(model: Model, shapes: &[(String, usize)], head: Head) -> Result<Self, Failure> {
        if let Model::Onnx(_) = &model {
            let (template, sizes) = template(&model, shapes)?;
            return Ok(Self { model, template, sizes, stays: Vec::new() });
        }
        let mut template = model.template()?;
        template.dimensions.extend(shapes.iter().cloned());
        template.graph_of(&template.dimensions).map_err(Failure::bad_input)?;
        let stays = match &model {
            Model::Pretrained(model) if model.coding.is_some() => Vec::new(),
            Model::Pretrained(model) => published::in_float(head, (model, &template))?,
            Model::Template(_) | Model::Onnx(_) => Vec::new(),
        };
        Ok(Self { model, template, sizes: BTreeMap::new(), stays })
    }

    /// The published model that it is, if it is one.
    pub(in crate::commands) fn published(&self) -> Option<&Pretrained> {
        match &self.model {
            Model::Pretrained(model) => Some(model),
            Model::Template(_) | Model::Onnx(_) => None,
        }
    }

    /// The quantization that it accepts. Published models and files have codes alone: the ecosystem
    /// has no words for more, and a file is built anew at other sizes. There pruned weights keep
    /// their zeros.
    pub(in crate::commands) fn quantization(&self, quantization: Quantization) -> Quantization {
        let alone = Quantization { additions: Additions::None, ..quantization.clone() };
        match &self.model {
            Model::Pretrained(_) => published::meant(&self.stays, alone),
            Model::Onnx(_) => alone,
            Model::Template(_) => quantization,
        }
    }

    /// The model in a mode that needs no training, made while it goes on.
    pub(in crate::commands) fn apply(
        &self,
        backend: &dyn Backend,
        how: (Preparation, &Quantization),
        seen: &[Vec<Tensor>],
        going: &Going<'_>,
    ) -> Result<Quantized, Unable> {
        match self.published() {
            Some(_) => published::apply((backend, &self.template), how, seen, going),
            None => apply_while(backend, &self.template, how, seen, going),
        }
    }
}
