//! Several prompts decoded together: a sequence that ends makes room for the next prompt between
//! two steps (continuous batching; Yu et al., "Orca", OSDI 2022). If a pool of pages is full, the
//! sequence that began last makes room for the others, and is read again when there are pages.
//!
//! Invariant: the tokens of a prompt do not depend on which others are decoded beside it, but for
//! rounding.

use super::{CachedDecoder, Chooser, DecodeError, Generated, Limits};
use overdrive_bench::clock::Clock;
use std::collections::VecDeque;

/// A sequence of the batch that is under way.
struct Running {
    prompt: usize,
    /// Its latest token, which the caches have not seen.
    last: u32,
}

/// Tokens after each prompt. A prompt is drawn with the seed of the sampling + its number, which is
/// its index if the chooser has no numbers. `each` hears of every token with its prompt's index,
/// and ends all with `false`. Times are from the start of all.
///
/// # Errors
/// As [`CachedDecoder::join`] and [`CachedDecoder::step`], and when logits are no numbers or
/// another rank fails. At once, where a pool of pages could not hold the longest text by itself.
pub fn generate_all(
    decoder: &mut CachedDecoder<'_>,
    prompts: &[Vec<u32>],
    (chooser, limits): (&Chooser<'_>, &Limits<'_>),
    clock: &dyn Clock,
    each: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<Vec<Generated>, DecodeError> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    decoder.holds(longest.saturating_add(limits.tokens))?;
    (0..decoder.sequences()).for_each(|sequence| decoder.leave(sequence));
    let mut made = vec![Generated::default(); prompts.len()];
    let start = clock.now_ns();
    if limits.tokens == 0 {
        return Ok(made);
    }
    // The token that comes next, where its sequence goes on with it.
    let mut pick = |prompt: usize,
                    text: &mut Generated,
                    (after, place): (&After, usize)|
     -> Result<Option<u32>, DecodeError> {
        let token = after.token(place, chooser, (prompt, text.tokens.len()))?;
        let Some(token) = token else { return Ok(None) };
        text.times_ns.push(clock.now_ns() - start);
        if limits.ends.contains(&token) {
            return Ok(None);
        }
        text.tokens.push(token);
        chooser.hear(each(prompt, token));
        Ok((text.tokens.len() < limits.tokens).then_some(token))
    };
    let mut waiting: VecDeque<usize> = (0..prompts.len()).collect();
    let mut running: Vec<Option<Running>> = Vec::new();
    running.resize_with(decoder.sequences(), || None);
    while chooser.goes_on() {
        for sequence in 0..running.len() {
            while running[sequence].is_none() && chooser.goes_on() {
                let Some(&prompt) = waiting.front() else { break };
                // With what was made of it before it made room for others.
                let text = [&prompts[prompt][..], &made[prompt].tokens].concat();
                let logits = match decoder.join(sequence, &text) {
                    // Those that are under way give pages back.
                    Err(DecodeError::Pages { .. }) if running.iter().any(Option::is_some) => break,
                    logits => logits?,
                };
                waiting.pop_front();
                let after = After::Logits(logits, 1);
                let next = pick(prompt, &mut made[prompt], (&after, 0))?;
                running[sequence] = next.map(|last| Running { prompt, last });
            }
            if running[sequence].is_none() {
                decoder.leave(sequence);
            }
        }
        if !chooser.goes_on() || running.iter().all(Option::is_none) {
            break;
        }
        let after = if chooser.is_greedy() {
            let choose = |decoder: &mut CachedDecoder<'_>, tokens: &[Option<u32>]| {
                decoder.likeliest_of(tokens, 1)
            };
            After::Tokens(step(decoder, &mut running, &mut waiting, choose)?)
        } else {
            let logits = step(decoder, &mut running, &mut waiting, CachedDecoder::step)?;
            After::Logits(logits, running.len())
        };
        for (sequence, place) in running.iter_mut().enumerate() {
            if !chooser.goes_on() {
                break;
            }
            if let Some(Running { prompt, .. }) = *place {
                let next = pick(prompt, &mut made[prompt], (&after, sequence))?;
                *place = next.map(|last| Running { prompt, last });
                if next.is_none() {
                    decoder.leave(sequence);
                }
            }
        }
    }
    Ok(made)
}

/// The outcome of a step for all sequences, in their order.
enum After {
    /// `[S, V]`, with S.
    Logits(Vec<f32>, usize),
    /// None where logits are no numbers.
    Tokens(Vec<Option<u32>>),
}

impl After {
    /// The next token of the sequence at a place; `None` where all end instead.
    fn token(
        &self,
        place: usize,
        chooser: &Chooser<'_>,
        (prompt, index): (usize, usize),
    ) -> Result<Option<u32>, DecodeError> {
        match self {
            Self::Logits(all, sequences) => {
                let width = all.len() / sequences;
                chooser.pick(&all[place * width..][..width], (prompt, index))
            }
            Self::Tokens(all) => all[place].map(Some).ok_or(DecodeError::NoNumber(index)),
        }
    }
}

/// A step after the latest token of each sequence that is under way. If the pool of pages is full,
/// the one that began last waits first.
fn step<'a, T>(
    decoder: &mut CachedDecoder<'a>,
    running: &mut [Option<Running>],
    waiting: &mut VecDeque<usize>,
    take: impl Fn(&mut CachedDecoder<'a>, &[Option<u32>]) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    loop {
        let last = |place: &Option<Running>| place.as_ref().map(|running| running.last);
        let tokens: Vec<Option<u32>> = running.iter().map(last).collect();
        match take(decoder, &tokens) {
            Err(DecodeError::Pages { .. }) if tokens.iter().flatten().count() > 1 => {}
            after => return after,
        }
        let prompt = |at: &usize| running[*at].as_ref().map(|running| running.prompt);
        if let Some(latest) = (0..running.len()).max_by_key(prompt) {
            decoder.leave(latest);
            if let Some(Running { prompt, .. }) = running[latest].take() {
                waiting.push_front(prompt);
            }
        }
    }
}
