//! `Decoder`: anything that gives the logits of the next token, and why it may stop.

use crate::Sampling;
use overdrive_ir::{BackendError, GraphError};

/// Gives the logits of the next token.
pub trait Decoder {
    /// Compiles what a prompt of this length needs, so that no clock sees it. If all tokens are to
    /// be the likeliest, [`Self::likeliest`] follows [`Self::begin`], else [`Self::next`].
    ///
    /// # Errors
    /// When the prompt is empty or too long, or when the device refuses.
    fn prepare(&mut self, prompt: usize, likeliest: bool) -> Result<(), DecodeError>;
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
    /// The likeliest tokens after one more token, each after the one before: at least one, and no
    /// more than `most`. Some decoders choose several at a time, without the host. `index` is that
    /// of the first.
    ///
    /// # Errors
    /// As [`Self::next`], and when logits are no numbers.
    fn likeliest(
        &mut self,
        token: u32,
        index: usize,
        most: usize,
    ) -> Result<Vec<u32>, DecodeError> {
        debug_assert!(most > 0, "a token is wanted");
        let logits = self.next(token)?;
        let token = Sampling::GREEDY.pick(&logits, index as u64);
        Ok(vec![token.ok_or(DecodeError::NoNumber(index))?])
    }
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
        /// Tokens of one sequence.
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
