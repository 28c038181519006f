//! Decoding: the next token again and again, from executables that are compiled once.
//!
//! [`CachedDecoder`] keeps keys and values of a [`LanguageModel`], [`WindowDecoder`] computes a
//! model of fixed context anew for every token; both are a [`Decoder`], for which [`generate`]
//! samples. [`generate_all`] decodes several prompts together. Invariant: with and without a cache
//! the logits are the same within rounding, which a test compares step by step.

mod batch;
mod cached;
mod model;
mod pages;
mod sampling;
mod window;

pub use batch::generate_all;
pub use cached::CachedDecoder;
pub use model::LanguageModel;
pub use sampling::Sampling;
pub use window::WindowDecoder;

use overdrive_bench::clock::Clock;
use overdrive_ir::{BackendError, GraphError};

/// Gives the logits of the next token.
pub trait Decoder {
    /// Compiles what a prompt of this length needs, so that no clock sees it.
    ///
    /// # Errors
    /// When the prompt is empty or too long, or when the device refuses.
    fn prepare(&mut self, prompt: usize) -> Result<(), DecodeError>;
    /// Logits `[V]` after a prompt; what was there before is forgotten.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    fn begin(&mut self, prompt: &[u32]) -> Result<Vec<f32>, DecodeError>;
    /// Logits `[V]` after one more token.
    ///
    /// # Errors
    /// When the sequence is full, or when the device refuses.
    fn next(&mut self, token: u32) -> Result<Vec<f32>, DecodeError>;
}

/// Why decoding stopped.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// There is nothing to go on from.
    #[error("the prompt has no token: expected at least one")]
    EmptyPrompt,
    /// The model has seen nothing as long.
    #[error(
        "{found} tokens: expected at most {capacity}, which is what this decoder has room for; \
         use a shorter prompt or fewer tokens"
    )]
    Full {
        /// Room for tokens.
        capacity: usize,
        /// Prompt and what was to be generated.
        found: usize,
    },
    /// The pool of pages is too small, or others have what is missing.
    #[error(
        "{tokens} tokens: expected {needed} pages of {size} tokens for them, found {found} of \
         {count}; give the pool more pages, or use a shorter prompt or fewer tokens"
    )]
    Pages {
        /// Of one sequence.
        tokens: usize,
        /// Pages that these take.
        needed: usize,
        /// Tokens of a page.
        size: usize,
        /// Pages that the sequence could have.
        found: usize,
        /// Pages of the pool.
        count: usize,
    },
    /// The model's own output is no number.
    #[error(
        "the logits of token {0} have a NaN: the weights, or what computed with them, are broken"
    )]
    NoNumber(usize),
    /// The graph takes or gives something else than token ids and logits.
    #[error("{0}")]
    NotText(String),
    /// A graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// When generation ends.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// Most tokens.
    pub tokens: usize,
    /// Tokens that end a text; they are not part of it.
    pub ends: &'a [u32],
}

/// What was generated, and when.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Generated {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// From the start to each token, in ns; one entry more where an end token was drawn.
    pub times_ns: Vec<u64>,
}

impl Generated {
    /// Time to the first token, in seconds.
    pub fn first_token_s(&self) -> Option<f64> {
        self.times_ns.first().map(|&ns| ns as f64 / 1e9)
    }

    /// Tokens after the first one per second; what comes before it is [`Self::first_token_s`].
    pub fn tokens_per_second(&self) -> Option<f64> {
        let (first, last) = (self.times_ns.first()?, self.times_ns.last()?);
        let seconds = (last - first) as f64 / 1e9;
        (seconds > 0.0).then(|| (self.times_ns.len() - 1) as f64 / seconds)
    }
}

/// Tokens after `prompt`; `each` hears of every one as it comes and may end it with `false`.
///
/// # Errors
/// As [`Decoder`], and when logits are no numbers.
pub fn generate(
    decoder: &mut dyn Decoder,
    prompt: &[u32],
    (sampling, limits): (&Sampling, &Limits<'_>),
    clock: &dyn Clock,
    each: &mut dyn FnMut(u32) -> bool,
) -> Result<Generated, DecodeError> {
    let mut generated = Generated::default();
    let start = clock.now_ns();
    let mut logits = decoder.begin(prompt)?;
    for index in 0..limits.tokens {
        if index > 0 {
            logits = decoder.next(generated.tokens[index - 1])?;
        }
        let token = sampling.pick(&logits, index as u64).ok_or(DecodeError::NoNumber(index))?;
        generated.times_ns.push(clock.now_ns() - start);
        if limits.ends.contains(&token) {
            break;
        }
        generated.tokens.push(token);
        if !each(token) {
            break;
        }
    }
    Ok(generated)
}
