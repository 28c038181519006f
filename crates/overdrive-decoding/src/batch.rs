//! Several prompts decoded together: a sequence that ends makes room for the next prompt between
//! two steps (continuous batching; Yu et al., "Orca", OSDI 2022). If a pool of pages is full, the
//! sequence that began last makes room for the others, and is read again when there are pages.
//!
//! With a draft, a round reads several tokens of each sequence at once, and takes back those that
//! the model would not have chosen.
//!
//! Invariant: the tokens of a prompt do not depend on which others are decoded beside it, nor on a
//! draft, but for rounding.

use super::{CachedDecoder, Chooser, Continued, DecodeError, Generated, Limits, Speculation};
use overdrive_bench::clock::Clock;
use std::collections::VecDeque;

/// A sequence of the batch that is under way.
struct Running {
    prompt: usize,
    /// The prompt and what was made of it. The caches have not seen the last token.
    text: Vec<u32>,
}

/// Tokens after each prompt. A prompt is drawn with the seed of the sampling + its number, which is
/// its index if the chooser has no numbers. `each` hears of every token with its prompt's index,
/// and ends all with `false`. Times are from the start of all.
///
/// # Errors
/// As [`CachedDecoder::join`] and [`CachedDecoder::step`], and when logits are no numbers, a draft
/// fails, or another rank fails. At once, where a pool of pages could not hold the longest text by
/// itself.
pub fn generate_all(
    (decoder, mut speculation): (&mut CachedDecoder<'_>, Option<&mut Speculation<'_>>),
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
    // The token, where its sequence goes on with it.
    let mut keep = |prompt: usize, text: &mut Generated, token: Option<u32>| -> Option<u32> {
        let token = token?;
        text.times_ns.push(clock.now_ns() - start);
        if limits.ends.contains(&token) {
            return None;
        }
        text.tokens.push(token);
        chooser.hear(each(prompt, token));
        (text.tokens.len() < limits.tokens).then_some(token)
    };
    let mut waiting: VecDeque<usize> = (0..prompts.len()).collect();
    let mut running: Vec<Option<Running>> = Vec::new();
    running.resize_with(decoder.sequences(), || None);
    while chooser.goes_on() {
        for sequence in 0..running.len() {
            while running[sequence].is_none() && chooser.goes_on() {
                let Some(&prompt) = waiting.front() else { break };
                // With what was made of it before it made room for others.
                let mut text = [&prompts[prompt][..], &made[prompt].tokens].concat();
                let logits = match decoder.join(sequence, &text) {
                    // Those that are under way give pages back.
                    Err(DecodeError::Pages { .. }) if running.iter().any(Option::is_some) => break,
                    logits => logits?,
                };
                waiting.pop_front();
                let token = chooser.pick(&logits, (prompt, made[prompt].tokens.len()))?;
                let next = keep(prompt, &mut made[prompt], token);
                text.extend(next);
                running[sequence] = next.map(|_| Running { prompt, text });
            }
            if running[sequence].is_none() {
                decoder.leave(sequence);
            }
        }
        if !chooser.goes_on() || running.iter().all(Option::is_none) {
            break;
        }
        let ahead = match &mut speculation {
            Some(speculation) => {
                let made_of = |prompt: usize| made[prompt].tokens.len();
                let texts = continued(decoder, &running, (&made_of, limits.tokens));
                let proposed = speculation.propose(&texts, chooser)?;
                check(decoder, &running, (proposed, speculation.width()), chooser)?
            }
            None => None,
        };
        let is_ahead = ahead.is_some();
        let round = match ahead {
            Some(round) => round,
            None => step(decoder, &mut running, &mut waiting, chooser)?,
        };
        for (sequence, place) in running.iter_mut().enumerate() {
            if !chooser.goes_on() {
                break;
            }
            let Some(Running { prompt, text }) = place else { continue };
            let (read, of) = (&round.reads[sequence], &mut made[*prompt]);
            let (mut next, mut kept) = (None, 0);
            // The last token of the text, and then those proposed, while the model agrees.
            while chooser.goes_on()
                && (kept == 0 || next.is_some() && next == read.get(kept).copied())
            {
                let token = round.token([sequence, kept], chooser, (*prompt, of.tokens.len()))?;
                next = keep(*prompt, of, token);
                text.extend(next);
                kept += 1;
            }
            if let (Some(speculation), true) = (&mut speculation, is_ahead) {
                speculation.hear(read.len() - 1, kept - 1);
            }
            match next {
                Some(_) => decoder.take_back(sequence, read.len() - kept),
                None => {
                    *place = None;
                    decoder.leave(sequence);
                }
            }
        }
    }
    Ok(made)
}

/// The texts under way, and how many more tokens of each are of use.
fn continued<'t>(
    decoder: &CachedDecoder<'_>,
    running: &'t [Option<Running>],
    (made_of, most): (&dyn Fn(usize) -> usize, usize),
) -> Vec<Option<Continued<'t>>> {
    let of = |(sequence, place): (usize, &'t Option<Running>)| {
        let Running { prompt, text } = place.as_ref()?;
        let made = made_of(*prompt);
        // One token comes of itself, and the last one of the text is yet to be read.
        let wanted = most.saturating_sub(made + 1);
        let room = decoder.room_behind(sequence).saturating_sub(1);
        Some(Continued { prompt: *prompt, text, made, most: wanted.min(room) })
    };
    running.iter().enumerate().map(of).collect()
}

/// Tokens that a run of the model read, and those that it gave.
struct Round {
    after: After,
    /// N.
    width: usize,
    /// Up to N tokens of each sequence.
    reads: Vec<Vec<u32>>,
}

/// The outcome of a run, for all sequences in their order.
enum After {
    /// `[S, N, V]`.
    Logits(Vec<f32>),
    /// `[S, N]`; `None` where logits are no numbers.
    Tokens(Vec<Option<u32>>),
}

impl Round {
    /// The token behind one of those that a sequence read; `None` where all end instead.
    fn token(
        &self,
        [sequence, at]: [usize; 2],
        chooser: &Chooser<'_>,
        (prompt, index): (usize, usize),
    ) -> Result<Option<u32>, DecodeError> {
        let place = sequence * self.width + at;
        match &self.after {
            After::Logits(all) => {
                let width = all.len() / (self.reads.len() * self.width);
                chooser.pick(&all[place * width..][..width], (prompt, index))
            }
            After::Tokens(all) => all[place].map(Some).ok_or(DecodeError::NoNumber(index)),
        }
    }
}

/// Reads the latest token of each sequence and those that are proposed behind it. `None` where
/// there are none, or no pages for them: proposals make no sequence wait.
fn check(
    decoder: &mut CachedDecoder<'_>,
    running: &[Option<Running>],
    (proposed, width): (Vec<Vec<u32>>, usize),
    chooser: &Chooser<'_>,
) -> Result<Option<Round>, DecodeError> {
    if proposed.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let read = |(place, proposed): (&Option<Running>, Vec<u32>)| match place {
        Some(Running { text, .. }) => text.last().copied().into_iter().chain(proposed).collect(),
        None => vec![],
    };
    let reads: Vec<Vec<u32>> = running.iter().zip(proposed).map(read).collect();
    let after = match chooser.is_greedy() {
        true => decoder.likeliest_of_several(&reads, width).map(After::Tokens),
        false => decoder.several(&reads, width).map(After::Logits),
    };
    match after {
        Err(DecodeError::Pages { .. }) => {
            // Those that some sequences took for their proposals.
            (0..reads.len()).for_each(|sequence| decoder.take_back(sequence, 0));
            Ok(None)
        }
        after => Ok(Some(Round { after: after?, width, reads })),
    }
}

/// A step after the latest token of each sequence that is under way. If the pool of pages is full,
/// the one that began last waits first.
fn step(
    decoder: &mut CachedDecoder<'_>,
    running: &mut [Option<Running>],
    waiting: &mut VecDeque<usize>,
    chooser: &Chooser<'_>,
) -> Result<Round, DecodeError> {
    loop {
        let last = |place: &Option<Running>| place.as_ref()?.text.last().copied();
        let tokens: Vec<Option<u32>> = running.iter().map(last).collect();
        let after = match chooser.is_greedy() {
            true => decoder.likeliest_of(&tokens, 1).map(After::Tokens),
            false => decoder.step(&tokens).map(After::Logits),
        };
        match after {
            Err(DecodeError::Pages { .. }) if tokens.iter().flatten().count() > 1 => {}
            after => {
                let reads = tokens.into_iter().map(|token| token.into_iter().collect()).collect();
                return Ok(Round { after: after?, width: 1, reads });
            }
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
