//! Several prompts decoded together: a sequence that ends makes room for the next prompt between
//! two steps (continuous batching; Yu et al., "Orca", OSDI 2022).
//!
//! Invariant: the tokens of a prompt do not depend on which others are decoded beside it, but for
//! rounding.

use super::{CachedDecoder, DecodeError, Generated, Limits, Sampling};
use overdrive_bench::clock::Clock;
use std::cell::Cell;

/// A sequence of the batch that is under way.
struct Running {
    prompt: usize,
    /// Its latest token, which the caches have not seen.
    last: u32,
}

/// Tokens after each prompt. Prompt i is drawn with the seed of `sampling` + i. `each` hears of
/// every token with its prompt's index, and ends all with `false`. Times are from the start of all.
///
/// # Errors
/// As [`CachedDecoder::join`] and [`CachedDecoder::step`], and when logits are no numbers.
pub fn generate_all(
    decoder: &mut CachedDecoder<'_>,
    prompts: &[Vec<u32>],
    (sampling, limits): (&Sampling, &Limits<'_>),
    clock: &dyn Clock,
    each: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<Vec<Generated>, DecodeError> {
    let mut made = vec![Generated::default(); prompts.len()];
    let start = clock.now_ns();
    let goes_on = Cell::new(limits.tokens > 0);
    // The token after these logits, where its sequence goes on with it.
    let mut pick = |prompt: usize, logits: &[f32]| -> Result<Option<u32>, DecodeError> {
        let (index, text) = (made[prompt].tokens.len(), &mut made[prompt]);
        let own = Sampling { seed: sampling.seed.wrapping_add(prompt as u64), ..*sampling };
        let token = own.pick(logits, index as u64).ok_or(DecodeError::NoNumber(index))?;
        text.times_ns.push(clock.now_ns() - start);
        if limits.ends.contains(&token) {
            return Ok(None);
        }
        text.tokens.push(token);
        goes_on.set(goes_on.get() && each(prompt, token));
        Ok((text.tokens.len() < limits.tokens).then_some(token))
    };
    let mut waiting = 0..prompts.len();
    let mut running: Vec<Option<Running>> = Vec::new();
    running.resize_with(decoder.sequences(), || None);
    while goes_on.get() {
        for (sequence, place) in running.iter_mut().enumerate() {
            while place.is_none() && goes_on.get() {
                let Some(prompt) = waiting.next() else { break };
                let logits = decoder.join(sequence, &prompts[prompt])?;
                *place = pick(prompt, &logits)?.map(|last| Running { prompt, last });
            }
        }
        let tokens: Vec<Option<u32>> =
            running.iter().map(|place| place.as_ref().map(|running| running.last)).collect();
        if !goes_on.get() || tokens.iter().all(Option::is_none) {
            break;
        }
        let logits = decoder.step(&tokens)?;
        let width = logits.len() / tokens.len();
        for (place, logits) in running.iter_mut().zip(logits.chunks(width)) {
            if !goes_on.get() {
                break;
            }
            if let Some(Running { prompt, .. }) = *place {
                *place = pick(prompt, logits)?.map(|last| Running { prompt, last });
            }
        }
    }
    Ok(made)
}
