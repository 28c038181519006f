//! How surprised a decoder is by given texts, token by token: what a cache of codes costs in
//! quality is the difference between two decoders.
//!
//! Each token is fed where generation would feed its own, so that all but the first are predicted
//! from the cache as generation predicts them.

use super::{CachedDecoder, DecodeError};

/// The negative log-likelihood, in nats, of each token behind the first of each text. Texts are
/// decoded together, at most as many as the decoder has sequences. `each` hears of every step, and
/// ends all with `false`: `None`.
///
/// # Errors
/// As [`CachedDecoder::join`] and [`CachedDecoder::step`], and when logits are no numbers.
pub fn surprise(
    decoder: &mut CachedDecoder<'_>,
    texts: &[Vec<u32>],
    each: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<Vec<f64>>>, DecodeError> {
    (0..decoder.sequences()).for_each(|sequence| decoder.leave(sequence));
    let mut all = vec![vec![]; texts.len()];
    let hear = |of: &mut Vec<f64>, logits: &[f32], token: u32| -> Result<(), DecodeError> {
        let found =
            negative_log_likelihood(logits, token).ok_or(DecodeError::NoNumber(of.len()))?;
        of.push(found);
        Ok(())
    };
    for ((sequence, text), of) in texts.iter().enumerate().zip(&mut all) {
        if let [first, second, ..] = text[..] {
            hear(of, &decoder.join(sequence, &[first])?, second)?;
        }
    }
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    for at in 1..longest.saturating_sub(1) {
        if !each() {
            return Ok(None);
        }
        let fed = |sequence: usize| {
            let text = texts.get(sequence)?;
            text.get(at).filter(|_| at + 1 < text.len()).copied()
        };
        let tokens: Vec<Option<u32>> = (0..decoder.sequences()).map(fed).collect();
        let logits = decoder.step(&tokens)?;
        let rows = logits.chunks((logits.len() / tokens.len()).max(1));
        for ((logits, text), of) in rows.zip(texts).zip(&mut all) {
            if let Some(&next) = text.get(at + 1) {
                hear(of, logits, next)?;
            }
        }
    }
    Ok(Some(all))
}

/// `log Σ e^logit - logit of the token`; `None` where it is no number.
pub fn negative_log_likelihood(logits: &[f32], token: u32) -> Option<f64> {
    let wide = || logits.iter().map(|&logit| f64::from(logit));
    let max = wide().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = wide().map(|logit| (logit - max).exp()).sum();
    let found = max + sum.ln() - f64::from(*logits.get(token as usize)?);
    found.is_finite().then_some(found)
}
