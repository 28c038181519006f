//! Speculative decoding: a draft proposes several tokens, and one run of the model checks them all.
//!
//! A proposed token is kept if it is the one that the model chooses there, drawn as ever. So every
//! token is the model's own, and those of a seed are the same with any draft or none. The exception
//! is rounding: a run of several tokens may sum products in another order. A draft that draws from
//! the same random numbers often agrees. With distributions whose total variation is v, it does at
//! least (1 - v) / (1 + v) of the time. Sources: Leviathan et al., arXiv:2211.17192; Chen et al.,
//! arXiv:2302.01318. Common random numbers in place of their rejections are those of Daliri et al.,
//! arXiv:2408.07978.

use crate::{Chooser, Continued, DecodeError, Draft};

/// A draft, and how it fares.
pub struct Speculation<'a> {
    draft: Box<dyn Draft + 'a>,
    most: usize,
    counts: Counts,
}

/// How often a draft was right.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Runs of the model that checked proposed tokens, counted for each text.
    pub runs: usize,
    /// Tokens proposed.
    pub proposed: usize,
    /// Tokens kept.
    pub accepted: usize,
}

impl<'a> Speculation<'a> {
    /// Up to `most` tokens at a time.
    pub fn new(draft: impl Draft + 'a, most: usize) -> Self {
        Self { draft: Box::new(draft), most, counts: Counts::default() }
    }

    /// Prepares the draft for a prompt of this length, so that no clock sees it.
    ///
    /// # Errors
    /// As [`Draft::prepare`].
    pub fn prepare(&mut self, prompt: usize, likeliest: bool) -> Result<(), DecodeError> {
        // It first reads the prompt and the token behind it.
        self.draft.prepare(prompt + 1, likeliest)
    }

    /// Most tokens that a run of the model reads: those proposed, and the one before them.
    pub fn width(&self) -> usize {
        self.most + 1
    }

    /// How often the draft was right so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Tokens of a text that a run of the model gave, on average; `None` before the first.
    pub fn tokens_per_run(&self) -> Option<f64> {
        let Counts { runs, accepted, .. } = self.counts;
        (runs > 0).then(|| (runs + accepted) as f64 / runs as f64)
    }

    /// The next tokens of each text.
    pub(crate) fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        chooser: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        let mut texts = texts.to_vec();
        texts.iter_mut().flatten().for_each(|of| of.most = of.most.min(self.most));
        self.draft.propose(&texts, chooser)
    }

    /// Hears that a run checked so many tokens of a text, and how many of them were right.
    pub(crate) fn hear(&mut self, proposed: usize, accepted: usize) {
        self.counts.runs += 1;
        self.counts.proposed += proposed;
        self.counts.accepted += accepted;
    }
}
