//! A model of text whose attention skips tiles.

use crate::skipped_tiles::SkippedTiles;
use overdrive::decoding::LanguageModel;
use overdrive::ir::{DType, Graph, GraphError};
use overdrive::models::Span;
use overdrive::studies::pretrained::Pretrained;

/// A model whose attention skips tiles where a prompt has several. Steps of one token skip none.
pub(super) struct SkippingModel<'a> {
    pub(super) model: &'a Pretrained,
    pub(super) tiles: SkippedTiles,
}

impl LanguageModel for SkippingModel<'_> {
    fn context(&self) -> usize {
        self.model.context()
    }

    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.tiles.skip(&self.model.graph(span, format)?)?.0)
    }

    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.tiles.skip(&self.model.unloaded(span, format)?)?.0)
    }
}
