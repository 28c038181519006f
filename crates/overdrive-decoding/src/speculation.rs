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

/// Rounds of one token at the beginning, so that it is known how long one takes.
const SINGLE: usize = 4;
/// Timed rounds of a kind from which on rates are compared.
const COMPARABLE: usize = 3;

/// A draft, and how it fares.
pub struct Speculation<'a> {
    draft: Box<dyn Draft + 'a>,
    most: usize,
    /// Rounds of all kinds.
    rounds: usize,
    single: Timed,
    ahead: Timed,
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

/// Rounds of a kind, without the first, which also packs weights.
#[derive(Copy, Clone, Debug, Default)]
struct Timed {
    warm: bool,
    rounds: usize,
    ns: u64,
}

impl Timed {
    fn add(&mut self, ns: u64) {
        if std::mem::replace(&mut self.warm, true) {
            (self.rounds, self.ns) = (self.rounds + 1, self.ns + ns);
        }
    }

    fn mean_ns(&self) -> Option<f64> {
        (self.rounds >= COMPARABLE).then(|| self.ns as f64 / self.rounds as f64)
    }
}

impl<'a> Speculation<'a> {
    /// Up to `most` tokens at a time.
    pub fn new(draft: impl Draft + 'a, most: usize) -> Self {
        let (single, ahead) = (Timed::default(), Timed::default());
        let counts = Counts::default();
        Self { draft: Box::new(draft), most, rounds: 0, single, ahead, counts }
    }

    /// Prepares the draft for a prompt of this length, so that no clock sees it.
    ///
    /// # Errors
    /// As [`Draft::prepare`].
    pub fn prepare(&mut self, prompt: usize, likeliest: bool) -> Result<(), DecodeError> {
        // A draft first reads a prompt and its first token, or also those of the first rounds.
        self.draft.prepare(prompt + 1, likeliest)?;
        self.draft.prepare(prompt + 1 + SINGLE, likeliest)
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

    /// The rate of tokens over that of rounds of one token, all of this call's rounds together;
    /// `None` of too few.
    pub fn speed_up(&self) -> Option<f64> {
        let (single, ahead) = (self.single.mean_ns()?, self.ahead.mean_ns()?);
        let [singles, aheads] = [self.single, self.ahead].map(|timed| timed.rounds as f64);
        let tokens = singles + aheads * self.tokens_per_run()?;
        Some(tokens * single / (singles * single + aheads * ahead))
    }

    /// The next tokens of each text, or none of any, so that one token is read.
    pub(crate) fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        chooser: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        self.rounds += 1;
        if self.rounds <= SINGLE {
            return Ok(vec![vec![]; texts.len()]);
        }
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

    /// Hears how long a round took, of tokens ahead or of single ones.
    pub(crate) fn took(&mut self, ns: u64, is_ahead: bool) {
        if is_ahead { self.ahead.add(ns) } else { self.single.add(ns) }
    }
}
