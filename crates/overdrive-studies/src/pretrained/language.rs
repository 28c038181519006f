//! A folder's decoder as a model of text, whose graphs `overdrive-decoding` runs.

use super::{Pretrained, declared};
use overdrive_decoding::LanguageModel;
use overdrive_ir::{DType, Graph, GraphError};
use overdrive_models::{Caches, Span};
use overdrive_passes::{Recipe, precision, separate, store};

impl LanguageModel for Pretrained {
    fn context(&self) -> usize {
        self.architecture.context()
    }

    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.loaded(self.unloaded(span, format)?))
    }

    /// Codes and their scales stay as they are. One rank of several has a graph of its part.
    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        let mut graph = declared(self.coding.as_ref(), self.architecture.span(span)?)?;
        if self.part.is_some() {
            (graph, _) = separate(&graph)?;
        }
        if format != DType::F32 {
            let is_matrix = |name: &str, rank: usize| {
                rank > 1 && !self.is_coded(name) && !Caches::holds_scales(name)
            };
            let stored = store(&graph, &|name, ty| is_matrix(name, ty.rank()).then_some(format))?;
            graph = precision(&stored, &Recipe { contractions: format })?;
        }
        match &self.part {
            Some(part) => part.graph(&graph),
            None => Ok(graph),
        }
    }
}
