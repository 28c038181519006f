//! One text after a prompt, token by token, with the time of each.

use crate::{Chooser, DecodeError, Decoder};
use overdrive_bench::clock::Clock;
use std::collections::VecDeque;

/// When generation ends.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// Most tokens.
    pub tokens: usize,
    /// Tokens that end a text; they are not part of it.
    pub ends: &'a [u32],
}

/// The generated tokens, and their times.
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
/// As [`Decoder`], and when logits are no numbers or another rank fails.
pub fn generate(
    decoder: &mut dyn Decoder,
    prompt: &[u32],
    (chooser, limits): (&Chooser<'_>, &Limits<'_>),
    clock: &dyn Clock,
    each: &mut dyn FnMut(u32) -> bool,
) -> Result<Generated, DecodeError> {
    let mut generated = Generated::default();
    let start = clock.now_ns();
    let mut logits = decoder.begin(prompt)?;
    let mut ready: VecDeque<u32> = VecDeque::new();
    for index in 0..limits.tokens {
        if index > 0 && ready.is_empty() {
            let last = generated.tokens[index - 1];
            if chooser.is_greedy() {
                // A reader of the first tokens waits for few of them.
                let most = index.min(limits.tokens - index);
                ready.extend(decoder.likeliest(last, index, most)?);
            } else {
                logits = decoder.next(last)?;
            }
        }
        let token = match ready.pop_front() {
            Some(token) => token,
            None => match chooser.pick(&logits, (0, index))? {
                Some(token) => token,
                None => break,
            },
        };
        generated.times_ns.push(clock.now_ns() - start);
        if limits.ends.contains(&token) {
            break;
        }
        generated.tokens.push(token);
        chooser.hear(each(token));
        if !chooser.goes_on() {
            break;
        }
    }
    Ok(generated)
}
