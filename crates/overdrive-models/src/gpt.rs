//! Decoder-only language models: token and position embeddings, blocks, final norm, untied head.
//!
//! x is `[batch, T]` token ids in i32, y the logits `[batch, T, V]`, T being the whole context.
//! Sizes: GPT-3 (Brown et al., arXiv:2005.14165, table 2.1). The vocabulary is GPT-2's 50,257
//! rounded up to a multiple of 128 (Karpathy, nanoGPT), so that the head's columns fill whole
//! tiles.

use crate::transformer::{STD, TransformerSize, blocks, layer_norm};
use overdrive_ir::{Builder, DType, Dim, Graph, GraphError, Init, TensorType};

pub(crate) const VOCABULARY: usize = 50_304;

/// The vocabulary of plain bytes.
pub(crate) const BYTES: usize = 256;

pub(crate) fn gpt_125m() -> Result<Graph, GraphError> {
    gpt(
        "gpt-125m",
        VOCABULARY,
        TransformerSize { layers: 12, context: 1024, width: 768, heads: 12 },
    )
}

pub(crate) fn gpt_350m() -> Result<Graph, GraphError> {
    gpt(
        "gpt-350m",
        VOCABULARY,
        TransformerSize { layers: 24, context: 1024, width: 1024, heads: 16 },
    )
}

pub(crate) fn gpt_1_3b() -> Result<Graph, GraphError> {
    gpt(
        "gpt-1.3b",
        VOCABULARY,
        TransformerSize { layers: 24, context: 1024, width: 2048, heads: 16 },
    )
}

pub(crate) fn gpt_6_7b() -> Result<Graph, GraphError> {
    gpt(
        "gpt-6.7b",
        VOCABULARY,
        TransformerSize { layers: 32, context: 1024, width: 4096, heads: 32 },
    )
}

pub(crate) fn text_transformer() -> Result<Graph, GraphError> {
    gpt(
        "text-transformer",
        BYTES,
        TransformerSize { layers: 5, context: 128, width: 128, heads: 4 },
    )
}

fn gpt(name: &str, vocabulary: usize, size: TransformerSize) -> Result<Graph, GraphError> {
    let TransformerSize { context, width, .. } = size;
    let b = Builder::new(name);
    let normal = Init::Normal { std: STD, seed: 0 };
    let ids = b.input("x", TensorType::new(DType::I32, [Dim::from("batch"), context.into()]));
    let tokens =
        b.state("token.weight", TensorType::new(DType::F32, [vocabulary, width]), normal.clone());
    let positions =
        b.state("position.weight", TensorType::new(DType::F32, [context, width]), normal.clone());
    let h = blocks(tokens.embedding(ids) + positions, size);
    let h = layer_norm(h, "norm", width);
    let head = b.state("head.weight", TensorType::new(DType::F32, [width, vocabulary]), normal);
    b.output("y", h.linear(head, None));
    b.finish()
}
