//! The table of models, and how a name finds one.

use crate::{built_in_llama, conv, gpt, mlp, transformer};
use overdrive_ir::{Graph, GraphError};

/// A built-in model.
#[derive(Debug)]
pub struct BuiltInModel {
    /// Its name on the command line and in results.
    pub name: &'static str,
    /// A description in one line.
    pub summary: &'static str,
    /// Builds the forward graph: input `x`, output `y`, named dimension `batch`.
    pub build: fn() -> Result<Graph, GraphError>,
    /// Size of each named dimension unless the user says otherwise.
    pub dimensions: &'static [(&'static str, usize)],
    /// Number of ids that its integer inputs index; all ids are below it. `None` where inputs are
    /// real numbers.
    pub vocabulary: Option<usize>,
    /// Its purpose: what its figures show.
    pub notes: &'static str,
}

/// Every built-in model, from the smallest workload family to the largest.
pub const MODELS: &[BuiltInModel] = &[
    BuiltInModel {
        name: "mlp",
        summary: "512 -> 2048 -> 2048 -> 10, biases, erf GELU",
        build: mlp::mlp,
        dimensions: &[("batch", 32)],
        vocabulary: None,
        notes: "three matrix products of few rows: weights stream from memory, epilogues are \
                nearly free",
    },
    BuiltInModel {
        name: "conv",
        summary: "3x64x64; two 3x3 convolutions with batch norm and ReLU, global average pool, \
                  linear 10",
        build: conv::conv,
        dimensions: &[("batch", 32)],
        vocabulary: None,
        notes: "convolutions with epilogues, and activations that are larger than the weights",
    },
    BuiltInModel {
        name: "transformer",
        summary: "6 pre-norm blocks, T 128, D 512, 8 heads, causal, FFN 2048 with tanh GELU, \
                  biases",
        build: transformer::transformer,
        dimensions: &[("batch", 8)],
        vocabulary: None,
        notes: "the main workload: matrix products, attention, norms and elementwise work as in a \
                language model",
    },
    BuiltInModel {
        name: "quick-inference",
        summary: "one block of the transformer, T 128, D 256, 8 heads",
        build: transformer::quick_inference,
        dimensions: &[("batch", 2)],
        vocabulary: None,
        notes: "latency of a small call: overheads between kernels count as much as the kernels",
    },
    BuiltInModel {
        name: "quick-memory",
        summary: "one block of the transformer, T 256, D 512, 8 heads",
        build: transformer::quick_memory,
        dimensions: &[("batch", 4)],
        vocabulary: None,
        notes: "peak memory of one block: what a plan and a fused attention save",
    },
    BuiltInModel {
        name: "gpt-125m",
        summary: "12 layers x 768, 12 heads, vocabulary 50,304, context 1,024",
        build: gpt::gpt_125m,
        dimensions: &[("batch", 1)],
        vocabulary: Some(gpt::VOCABULARY),
        notes: "a language model that fits every machine; the head is a third of its weights",
    },
    BuiltInModel {
        name: "gpt-350m",
        summary: "24 layers x 1024, 16 heads, vocabulary 50,304, context 1,024",
        build: gpt::gpt_350m,
        dimensions: &[("batch", 1)],
        vocabulary: Some(gpt::VOCABULARY),
        notes: "its training step shows what rematerialisation saves",
    },
    BuiltInModel {
        name: "gpt-1.3b",
        summary: "24 layers x 2048, 16 heads, vocabulary 50,304, context 1,024",
        build: gpt::gpt_1_3b,
        dimensions: &[("batch", 1)],
        vocabulary: Some(gpt::VOCABULARY),
        notes: "large enough that precision decides whether it fits",
    },
    BuiltInModel {
        name: "gpt-6.7b",
        summary: "32 layers x 4096, 32 heads, vocabulary 50,304, context 1,024",
        build: gpt::gpt_6_7b,
        dimensions: &[("batch", 1)],
        vocabulary: Some(gpt::VOCABULARY),
        notes: "27 GB in f32: for quantization, offload and several devices",
    },
    BuiltInModel {
        name: "llama-135m",
        summary: "30 layers x 576, 9 heads, 3 of keys, SwiGLU 1536, vocabulary 49,152, context \
                  2,048: SmolLM-135M",
        build: built_in_llama::llama_135m,
        dimensions: &[("batch", 1)],
        vocabulary: Some(built_in_llama::VOCABULARY_135M),
        notes: "many narrow layers: grouped queries, rotary positions, RMS norms",
    },
    BuiltInModel {
        name: "llama-1.1b",
        summary: "22 layers x 2048, 32 heads, 4 of keys, SwiGLU 5632, vocabulary 32,000, context \
                  2,048: TinyLlama",
        build: built_in_llama::llama_1_1b,
        dimensions: &[("batch", 1)],
        vocabulary: Some(built_in_llama::VOCABULARY_1_1B),
        notes: "a Llama of a size that one GPU trains",
    },
    BuiltInModel {
        name: "digits-mlp",
        summary: "64 -> 128 -> 128 -> 10, biases, erf GELU",
        build: mlp::digits_mlp,
        dimensions: &[("batch", 64)],
        vocabulary: None,
        notes: "trains on 8x8 digits in seconds",
    },
    BuiltInModel {
        name: "digits-conv",
        summary: "1x8x8; 3x3 convolutions to 16, 32 (stride 2) and 32 with ReLU, linear 10 on all \
                  places",
        build: conv::digits_conv,
        dimensions: &[("batch", 64)],
        vocabulary: None,
        notes: "trains on 8x8 digits in seconds",
    },
    BuiltInModel {
        name: "text-transformer",
        summary: "5 layers x 128, 4 heads, byte vocabulary, context 128, 1.1 M parameters",
        build: gpt::text_transformer,
        dimensions: &[("batch", 16)],
        vocabulary: Some(gpt::BYTES),
        notes: "trains on plain text in minutes",
    },
];

/// No built-in model has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown model `{name}`: expected one of \
         {known}{}", nearest.map_or(String::new(), |n| format!("; did you mean `{n}`?")))]
pub struct UnknownModel {
    /// The requested name.
    pub name: String,
    /// Every name there is.
    pub known: String,
    /// The most similar name, where one is similar.
    pub nearest: Option<&'static str>,
}

/// Names at least this similar (Jaro-Winkler) are worth suggesting.
const SIMILAR: f64 = 0.75;

/// The model of this name.
pub fn find(name: &str) -> Result<&'static BuiltInModel, UnknownModel> {
    let similarity = |model: &BuiltInModel| strsim::jaro_winkler(name, model.name);
    MODELS.iter().find(|model| model.name == name).ok_or_else(|| {
        let nearest = MODELS.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        let known: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        UnknownModel {
            name: name.to_owned(),
            known: known.join(", "),
            nearest: nearest.filter(|model| similarity(model) >= SIMILAR).map(|model| model.name),
        }
    })
}
