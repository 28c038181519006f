//! A model of text whose attention skips tiles.

use overdrive::decoding::LanguageModel;
use overdrive::ir::{DType, Graph, GraphError};
use overdrive::models::Span;
use overdrive::passes::skip_tiles;
use overdrive::studies::pretrained::Pretrained;

/// A model whose attention skips tiles where a prompt has several. Steps of one token skip none.
pub(super) struct SkippingModel<'a> {
    pub(super) model: &'a Pretrained,
    pub(super) threshold: f64,
}

impl LanguageModel for SkippingModel<'_> {
    fn context(&self) -> usize {
        self.model.context()
    }

    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(skip_tiles(&self.model.graph(span, format)?, self.threshold)?.0)
    }

    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(skip_tiles(&self.model.unloaded(span, format)?, self.threshold)?.0)
    }
}
