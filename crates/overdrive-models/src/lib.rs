//! The built-in models, published families for weights that others trained, and one perceptron.
//!
//! Built-in models are fixed, so that figures compare from machine to machine and year to year. The
//! families (GPT-2, Llama, Phi, BERT, ViT, CLIP, Whisper) take sizes; the perceptron, that of a
//! table. Each is one straight-line file, read like the formula, without a device or a speed flag.
//! The batch is the named dimension `batch`. Weights are states with seeded initial values.
//! Invariant: a built-in model's name always means the same graph and the same weights.

pub mod bert;
mod blocks;
mod built_in_llama;
mod cache;
pub mod clip;
mod conv;
mod experts;
mod gpt;
pub mod gpt2;
pub mod llama;
mod mlp;
mod parameters;
pub mod phi;
mod registry;
mod rotary;
mod span;
mod transformer;
pub mod vit;
pub mod whisper;

pub use blocks::Stack;
pub use built_in_llama::{LLAMA_CONTEXT, LLAMA_ROTARY_BASE, built_in_llama};
pub use cache::{CacheCodes, Caches, Pages};
pub use experts::{ExpertNames, Experts};
pub use mlp::{TABLE_MLP, table_mlp};
pub use parameters::{Activation, Bias};
pub use registry::{BuiltInModel, MODELS, UnknownModel, find};
pub use rotary::Rotary;
pub use span::Span;
pub use transformer::STD as INITIAL_STD;
