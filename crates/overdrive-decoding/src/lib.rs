//! Decoding: the next token again and again, from executables that are compiled once.
//!
//! [`CachedDecoder`] keeps keys and values of a [`LanguageModel`]. [`WindowDecoder`] computes a
//! model of fixed context anew for every token. Both are a [`Decoder`], for which [`generate`]
//! samples. [`generate_all`] decodes several prompts together. With a [`Speculation`] it checks
//! tokens that a [`Draft`] proposes, several at a time. A [`Chooser`] takes one token for all ranks
//! that decode together. Invariant: with and without a cache the logits are the same within
//! rounding, which a test compares step by step.

mod batch;
mod cached;
mod chooser;
mod decoder;
mod draft;
mod generate;
mod likeliest;
mod model;
mod pages;
mod sampling;
mod speculation;
mod surprise;
mod window;

pub use batch::generate_all;
pub use cached::CachedDecoder;
pub use chooser::Chooser;
pub use decoder::{DecodeError, Decoder};
pub use draft::{Continued, Draft, LookupDraft, ModelDraft};
pub use generate::{Generated, Limits, generate};
pub use model::LanguageModel;
pub use sampling::Sampling;
pub use speculation::{Counts, Speculation};
pub use surprise::{negative_log_likelihood, surprise};
pub use window::WindowDecoder;
