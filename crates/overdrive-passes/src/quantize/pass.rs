//! The pass itself: layers, then tables of embeddings, then weights in 16 bits.

use super::halves::halve;
use super::quantized::Quantized;
use super::rewrite::{conclude, prepare};
use super::scheme::Quantization;
use super::tables::code_tables;
use crate::Evidence;
use overdrive_ir::{Graph, GraphError};

/// Quantizes every layer that `quantization` gives a scheme.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what a scheme needs.
pub fn quantize(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Quantized, GraphError> {
    if quantization.is_learned() {
        return Err(GraphError {
            op: "quantize".into(),
            scope: graph.name().to_owned(),
            expected: "steps that training has learnt".into(),
            found: "a float model".into(),
            remedy: "train it with `learn` on data first".into(),
        });
    }
    let (layers, remarks) = prepare(graph, quantization, evidence)?;
    complete(graph, conclude(graph, layers, remarks)?, quantization)
}

/// `made` of `float`, with every weight to which no sample matters: tables in codes, and weights in
/// 16 bits.
///
/// # Errors
/// When a rounded weight is not finite.
pub fn complete(
    float: &Graph,
    made: Quantized,
    quantization: &Quantization,
) -> Result<Quantized, GraphError> {
    halve(float, code_tables(made, quantization)?, quantization)
}
