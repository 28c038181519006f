//! `Chooser`: the next token, and whether to go on; both are the same on all ranks.
//!
//! Ranks that decode together have the same logits up to rounding, and a draw could fall on either
//! side of it. So rank 0 draws, and all take its token. A rank's wish to end travels with the next
//! token. Invariant: all ranks keep the same tokens and end at the same one, whoever asked for it.

use crate::{DecodeError, Sampling};
use overdrive_ir::{BackendError, Communicator, Exchange};
use std::cell::Cell;

/// Chooses tokens, for one process or for all ranks.
#[derive(Debug)]
pub struct Chooser<'a> {
    sampling: &'a Sampling,
    ranks: Option<&'a dyn Communicator>,
    /// Numbers of the texts, which are added to the seed; of none, each its index.
    numbers: &'a [usize],
    /// Whether this rank wants to go on.
    own_wish: Cell<bool>,
    /// Whether all do, as far as all have heard.
    goes_on: Cell<bool>,
}

/// The bytes that a rank shows: its wish, then its token.
type Shown = [u8; 5];

impl<'a> Chooser<'a> {
    /// For one process, or for this rank of several.
    pub fn new(sampling: &'a Sampling, ranks: Option<&'a dyn Communicator>) -> Self {
        let (own_wish, goes_on) = (Cell::new(true), Cell::new(true));
        Self { sampling, ranks, numbers: &[], own_wish, goes_on }
    }

    /// The same for texts that have these numbers, such as lines of a file.
    #[must_use]
    pub fn with_numbers(self, numbers: &'a [usize]) -> Self {
        Self { numbers, ..self }
    }

    /// Whether nobody has asked to end.
    pub fn goes_on(&self) -> bool {
        self.goes_on.get()
    }

    /// Whether each token is the likeliest, and no other rank has a say.
    pub fn is_greedy(&self) -> bool {
        self.ranks.is_none() && self.sampling.temperature == 0.0
    }

    /// Hears what the user of this rank says to the latest token.
    pub(crate) fn hear(&self, goes_on: bool) {
        self.own_wish.set(self.own_wish.get() && goes_on);
        if self.ranks.is_none() {
            self.goes_on.set(self.own_wish.get());
        }
    }

    /// The token number `index` of text `text`, by its logits; `None` where all end instead.
    pub(crate) fn pick(
        &self,
        logits: &[f32],
        (text, index): (usize, usize),
    ) -> Result<Option<u32>, DecodeError> {
        let draw = || {
            let number = self.numbers.get(text).copied().unwrap_or(text);
            let seed = self.sampling.seed.wrapping_add(number as u64);
            let token = Sampling { seed, ..*self.sampling }.pick(logits, index as u64);
            token.ok_or(DecodeError::NoNumber(index))
        };
        let Some(ranks) = self.ranks else { return draw().map(Some) };
        let is_first = ranks.rank() == 0;
        let mut token = if is_first { draw()? } else { 0 };
        let mut bytes = Shown::default();
        bytes[0] = u8::from(self.own_wish.get());
        bytes[1..].copy_from_slice(&token.to_le_bytes());
        let group: Vec<usize> = (0..ranks.mesh().ranks()).collect();
        let exchange = Exchange { group: &group, what: "the next token", bytes: &bytes };
        let mut read = |rank: usize, shown: &[u8]| {
            let [wish, of_rank @ ..] = Shown::try_from(shown).expect("ranks have one version");
            self.goes_on.set(self.goes_on.get() && wish == 1);
            if rank == 0 {
                token = u32::from_le_bytes(of_rank);
            }
        };
        ranks.share(&exchange, &mut read).map_err(BackendError::from)?;
        Ok(self.goes_on.get().then_some(token))
    }
}
