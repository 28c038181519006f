//! A folder's decoder as a model of text, whose graphs `overdrive-decoding` runs.

use super::{Pretrained, declared};
use overdrive_decoding::LanguageModel;
use overdrive_ir::{DType, Graph, GraphError};
use overdrive_models::Span;
use overdrive_passes::{Recipe, precision, store};

impl LanguageModel for Pretrained {
    fn context(&self) -> usize {
        self.architecture.context()
    }

    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.loaded(self.unloaded(span, format)?))
    }

    /// A model with codes is in f32 beside them.
    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        let graph = declared(self.coding.as_ref(), self.architecture.span(span)?)?;
        if format == DType::F32 {
            return Ok(graph);
        }
        if let Some(coding) = &self.coding {
            return Err(GraphError {
                op: "generate".into(),
                scope: self.name.clone(),
                expected: "weights without codes for a 16-bit format".into(),
                found: format!("{} layers with codes ({})", coding.layers.len(), coding.mode),
                remedy: "leave out `--dtype`, or use the folder that was quantized".into(),
            });
        }
        let stored = store(&graph, &|_, ty| (ty.rank() > 1).then_some(format))?;
        precision(&stored, &Recipe { contractions: format })
    }
}
