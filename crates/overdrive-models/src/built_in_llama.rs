//! The built-in Llamas: two published ones by their sizes.
//!
//! Sources: config.json of HuggingFaceTB/SmolLM-135M; config.json of TinyLlama-1.1B (Zhang et al.,
//! arXiv:2401.02385). The graph is that of [`Llama`], as folders in Hugging Face's format have it.

use crate::llama::{Llama, Norms, QkNorm};
use crate::parameters::{Activation, Bias};
use crate::rotary::Rotary;
use crate::span::Span;
use overdrive_ir::{Graph, GraphError};

/// T: the longest sequence of both.
pub const LLAMA_CONTEXT: usize = 2048;
/// Base of the rotary positions of both.
pub const LLAMA_ROTARY_BASE: f64 = 10_000.0;

/// SmolLM-135M.
pub(crate) const VOCABULARY_135M: usize = 49_152;
/// TinyLlama.
pub(crate) const VOCABULARY_1_1B: usize = 32_000;

/// The sizes of the built-in model of this name, if it is a Llama.
pub fn built_in_llama(name: &str) -> Option<Llama> {
    match name {
        "llama-135m" => Some(smol()),
        "llama-1.1b" => Some(tiny()),
        _ => None,
    }
}

pub(crate) fn llama_135m() -> Result<Graph, GraphError> {
    smol().build_named("llama-135m", Span::Fixed(LLAMA_CONTEXT))
}

pub(crate) fn llama_1_1b() -> Result<Graph, GraphError> {
    tiny().build_named("llama-1.1b", Span::Fixed(LLAMA_CONTEXT))
}

fn smol() -> Llama {
    let sizes = Llama::plain(VOCABULARY_135M, [576, 1536], 64);
    Llama { layers: 30, heads: 9, key_heads: 3, tied: true, ..sizes }
}

fn tiny() -> Llama {
    let sizes = Llama::plain(VOCABULARY_1_1B, [2048, 5632], 64);
    Llama { layers: 22, heads: 32, key_heads: 4, tied: false, ..sizes }
}

impl Llama {
    /// One layer without the variants of its kin. Its heads have `depth` channels, and as many keys
    /// as queries.
    pub fn plain(vocabulary: usize, [width, hidden]: [usize; 2], depth: usize) -> Self {
        let frequencies = Rotary::plain_frequencies(LLAMA_ROTARY_BASE, depth);
        Self {
            vocabulary,
            width,
            layers: 1,
            heads: width / depth,
            key_heads: width / depth,
            depth,
            hidden,
            eps: 1e-5,
            rotary: Rotary { frequencies, gain: 1.0 },
            window_rotary: None,
            unturned: vec![],
            windows: vec![],
            scale: None,
            score_cap: None,
            logit_cap: None,
            embedding_scale: None,
            qkv_bias: Bias::None,
            output_bias: Bias::None,
            qk_norm: QkNorm::None,
            norm_offset: 0.0,
            norms: Norms::Before,
            activation: Activation::Silu,
            ffn_bias: Bias::None,
            experts: None,
            joint: false,
            tied: false,
        }
    }
}
