//! Several more tokens of each sequence in one run of the model. The last may be taken back.
//!
//! Sequences may read different numbers of tokens. Shorter ones are filled up with their last
//! token. Its copies lie behind the sequence, where nobody looks before they are overwritten. At
//! the end of the caches they lie on their original, and are equal to it.

use super::{CachedDecoder, Gives};
use crate::DecodeError;
use overdrive_ir::Tensor;
use overdrive_models::{Caches, Span};

impl CachedDecoder<'_> {
    /// Compiles what runs of up to `most` tokens of each sequence need, so that no clock sees it.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn prepare_several(&mut self, most: usize, likeliest: bool) -> Result<(), DecodeError> {
        let gives = if likeliest { Gives::Likeliest } else { Gives::Logits };
        self.compile((self.span_of(most), gives))
    }

    /// Logits `[S, most, V]` after each of the next tokens of each sequence, at most `most` of
    /// them. Those behind a sequence's own tokens mean nothing.
    ///
    /// # Errors
    /// As [`Self::step`]. No sequence has then seen its tokens.
    pub fn several(&mut self, tokens: &[Vec<u32>], most: usize) -> Result<Vec<f32>, DecodeError> {
        let logits = self.read(tokens, (most, Gives::Logits))?;
        Ok(logits.to_f32())
    }

    /// The likeliest tokens `[S, most]` in place of logits; `None` where these are no numbers.
    ///
    /// # Errors
    /// As [`Self::several`].
    pub fn likeliest_of_several(
        &mut self,
        tokens: &[Vec<u32>],
        most: usize,
    ) -> Result<Vec<Option<u32>>, DecodeError> {
        let made = self.read(tokens, (most, Gives::Likeliest))?.to_ints();
        Ok(made.into_iter().map(|token| u32::try_from(token).ok()).collect())
    }

    /// Takes so many of the last tokens of a sequence back, and their pages.
    pub fn take_back(&mut self, sequence: usize, tokens: usize) {
        let seen = self.seen[sequence].saturating_sub(tokens);
        self.seen[sequence] = seen;
        if let Some(pool) = &mut self.pool {
            pool.shrink(sequence, seen);
        }
    }

    /// Tokens that a sequence has still room for.
    pub fn room_behind(&self, sequence: usize) -> usize {
        self.caches.capacity.saturating_sub(self.seen[sequence])
    }

    fn span_of(&self, tokens: usize) -> Span {
        Span::Several { tokens, caches: self.caches }
    }

    fn read(
        &mut self,
        tokens: &[Vec<u32>],
        (most, gives): (usize, Gives),
    ) -> Result<Tensor, DecodeError> {
        let Caches { sequences, capacity, .. } = self.caches;
        for (sequence, tokens) in tokens.iter().enumerate().filter(|(_, of)| !of.is_empty()) {
            debug_assert!(tokens.len() <= most, "a run has room for these");
            let all = self.seen[sequence] + tokens.len();
            if self.seen[sequence] == 0 {
                return Err(DecodeError::EmptyPrompt);
            }
            if all > capacity {
                return Err(DecodeError::Full { capacity, found: all });
            }
            self.pool.as_mut().map_or(Ok(()), |pool| pool.grow(sequence, all))?;
        }
        let mut ids = Vec::with_capacity(sequences * most);
        for of in tokens {
            let last = of.last().copied().unwrap_or(0);
            let filled = of.iter().copied().chain(std::iter::repeat(last)).take(most);
            ids.extend(filled.map(|token| token as usize));
        }
        let [positions, table] = self.places();
        let found = self.run((self.span_of(most), gives), &[&ids, &positions, &table])?;
        for (seen, tokens) in self.seen.iter_mut().zip(tokens) {
            *seen += tokens.len();
        }
        Ok(found)
    }
}
