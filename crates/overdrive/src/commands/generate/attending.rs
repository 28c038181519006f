//! A model of text with other attention than its own.

use crate::asked_attention::OtherAttention;
use overdrive::decoding::LanguageModel;
use overdrive::ir::{DType, Graph, GraphError};
use overdrive::models::Span;
use overdrive::studies::pretrained::Pretrained;

/// A model whose attention differs over long prompts. That of steps of one token does not.
pub(super) struct AttendingModel<'a> {
    pub(super) model: &'a Pretrained,
    pub(super) attention: OtherAttention,
}

impl LanguageModel for AttendingModel<'_> {
    fn context(&self) -> usize {
        self.model.context()
    }

    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.attention.of(&self.model.graph(span, format)?)?.0)
    }

    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError> {
        Ok(self.attention.of(&self.model.unloaded(span, format)?)?.0)
    }
}
