//! Requirements for a model that is decoded with a cache.

use overdrive_ir::{DType, Graph, GraphError};
use overdrive_models::Span;

/// A model of text that has a graph for each part of a sequence.
///
/// Matrices and caches of keys and values are stored in the `format` of a graph, and contractions
/// take operands of it. Vectors (weights of norms, biases), sums, norms, softmax and logits stay
/// f32.
pub trait LanguageModel {
    /// Tokens of the longest sequence; 0 for a model that takes no tokens.
    fn context(&self) -> usize;
    /// The graph of a span, whose states begin as the weights, caches empty.
    ///
    /// # Errors
    /// When the model is no decoder, or its weights cannot be in this format.
    fn graph(&self, span: Span, format: DType) -> Result<Graph, GraphError>;
    /// The same with states that begin as anything.
    ///
    /// # Errors
    /// As [`Self::graph`].
    fn unloaded(&self, span: Span, format: DType) -> Result<Graph, GraphError>;
}
