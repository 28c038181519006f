//! `overdrive generate --judge FILE`: the perplexity of a text under the cache that decoding has.
//!
//! The text is cut into windows, which are decoded token by token as generation decodes. With codes
//! in the cache the same windows are decoded with numbers too, and windows are compared in pairs.
//! With other attention than the model's own, windows are as long as the model takes. They are read
//! whole, since attention of one token stays as it is. Tiles that a gate chose are held against as
//! many chosen by place.

use super::asked::{Generation, failure, joined};
use super::perplexity::{compared, perplexity};
use super::{policies, whole};
use crate::asked_attention::OtherAttention;
use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::{note, say};
use crate::text::{self, counted};
use overdrive::bench::digits;
use overdrive::bench::exit::Exit;
use overdrive::decoding::{CachedDecoder, LanguageModel, surprise};
use overdrive::files;
use overdrive::models::Caches;
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;
use serde_json::json;
use std::path::Path;

/// Tokens that judge where nothing else is asked for.
const TOKENS: usize = 2048;
/// Tokens of the longest window.
const WINDOW: usize = 256;
/// The same where windows are read whole.
const LONGEST_WHOLE: usize = 8192;
/// Windows that are decoded together.
const TOGETHER: usize = 8;
/// The longest file, in bytes.
const LONGEST: u64 = 64 << 20;

/// Mean negative log-likelihood of a token, in nats, of each window.
struct Judged {
    windows: Vec<f64>,
    tokens: usize,
    cache_bytes: u64,
}

pub(super) fn judge(asked: &Generation<'_>, file: &Path, stop: &Stop) -> Result<Exit, Failure> {
    let Model::Pretrained(pretrained) = asked.model else {
        return Err(Failure::bad_input(format!(
            "`--judge`: expected a model that keeps keys and values, a folder in Hugging Face's \
             format or a .gguf file; found `{}`",
            asked.arguments.model
        )));
    };
    if asked.ranks() > 1 {
        return Err(Failure::bad_input(format!(
            "--judge: expected one rank, found {}; leave out --nproc",
            asked.ranks()
        )));
    }
    let whole = files::read_text(file, LONGEST).map_err(Failure::bad_input)?;
    let mut tokens = text::encode(&asked.tokenizer, &whole)?;
    tokens.truncate(asked.arguments.max_tokens.map_or(TOKENS, |tokens| tokens as usize));
    if let (Some(option), Some(codes)) = (asked.arguments.attention.option(), asked.codes) {
        return Err(Failure::bad_input(format!(
            "--judge: expected {option} or --cache {}, found both; leave one out, so that the \
             difference is that of the other",
            codes.name()
        )));
    }
    let other = asked.attending.as_ref().map(|attending| &attending.attention);
    let policies = asked.arguments.attention_policies;
    let longest = if policies || other.is_some() { LONGEST_WHOLE } else { WINDOW };
    let window = longest.min(pretrained.context());
    // Windows of one length, so that each weighs the same; a shorter text is one window.
    let window = window.min(tokens.len());
    if window < 2 {
        return Err(Failure::bad_input(format!(
            "`{}`: expected a text of two tokens at least, found {}",
            file.display(),
            tokens.len()
        )));
    }
    let windows: Vec<Vec<u32>> = tokens.chunks_exact(window).map(<[u32]>::to_vec).collect();
    let left_out = tokens.len() % window;
    if left_out > 0 {
        note!(
            "note: the last {left_out} of {} tokens are left out: windows have {window} tokens \
             each, so that all weigh the same",
            tokens.len()
        );
    }
    if policies {
        return policies::judge(asked, (pretrained, &windows), stop);
    }
    if let Some(other) = other {
        return judge_attention(asked, (pretrained, &windows), other, stop);
    }
    let caches = Caches::of(TOGETHER.min(windows.len()), window);
    let mut decoder = asked.cached(pretrained, caches)?;
    let of_numbers = asked.codes.map(|codes| Ok((codes, decoder.beside(asked.mode, None)?)));
    let of_numbers = of_numbers.transpose().map_err(failure)?;
    let found = read(&mut decoder, &windows, stop)?;
    let numbers = match of_numbers {
        Some((codes, mut decoder)) => Some((codes, read(&mut decoder, &windows, stop)?)),
        None => None,
    };
    let with = perplexity(&found.windows);
    let (windows, tokens) = (counted(windows.len(), "window"), found.tokens);
    let count =
        format!("{tokens} tokens in {windows} of {window} (the first of each is only read)");
    let Some((codes, float)) = numbers else {
        let line = format!("perplexity {with:.4} over {count}");
        return said(asked, facts(&found), line);
    };
    let before = perplexity(&float.windows);
    let (loss, told) = compared(&found.windows, &float.windows);
    let own = json!({
        "float_perplexity": before, "float_cache_bytes": float.cache_bytes,
        "loss_percent": loss.percent, "loss_interval_percent": loss.interval_percent,
    });
    let line = format!(
        "perplexity {with:.4} with keys and values as {}, {before:.4} with numbers: \
         {:+.3} %{told}, over {count}; caches take {} and {}",
        codes.name(),
        loss.percent,
        digits::bytes(found.cache_bytes),
        digits::bytes(float.cache_bytes),
    );
    said(asked, joined(facts(&found), own), line)
}

/// Reads windows whole with this attention, with the model's own, and for a gate with as many tiles
/// by place.
fn judge_attention(
    asked: &Generation<'_>,
    read: (&Pretrained, &[Vec<u32>]),
    other: &OtherAttention,
    stop: &Stop,
) -> Result<Exit, Failure> {
    let full = whole::read(asked, read, None, stop)?;
    let before = perplexity(&full.means);
    let judged = |other: &OtherAttention| {
        let found = whole::read(asked, read, Some(other), stop)?;
        let (loss, told) = compared(&found.means, &full.means);
        let with = perplexity(&found.means);
        let mut own = json!({
            "perplexity": with, "loss_percent": loss.percent,
            "loss_interval_percent": loss.interval_percent,
        });
        if let Some(skipped) = found.skipped_percent {
            own["skipped_percent"] = skipped.into();
        }
        let loss = format!("{:+.3} %{told}", loss.percent);
        Ok::<_, Failure>((own, with, found.skipped_percent, loss))
    };
    let (mut own, with, skipped, told) = judged(other)?;
    let mut line = match skipped {
        Some(skipped) => format!(
            "perplexity {with:.4} with {skipped:.1} % of tiles skipped, {before:.4} with all: \
             {told}"
        ),
        None => format!(
            "perplexity {with:.4} with attention in fp8, {before:.4} with the model's own: {told}"
        ),
    };
    if let Some(placed) = other.by_place() {
        let (by_place, with, skipped, told) = judged(&placed)?;
        let skipped = skipped.unwrap_or_default();
        line += &format!("; {with:.4} with {skipped:.1} % skipped by place: {told}");
        own["by_place"] = by_place;
    }
    let (count, window) = (read.1.len(), read.1[0].len());
    line += &format!(", over {} of {window} tokens", counted(count, "window"));
    let all = json!({ "windows": count, "full_perplexity": before });
    said(asked, joined(own, all), line)
}

/// The part of a result that does not depend on a comparison.
fn facts(found: &Judged) -> serde_json::Value {
    json!({
        "perplexity": perplexity(&found.windows), "judged_tokens": found.tokens,
        "windows": found.windows.len(), "cache_bytes": found.cache_bytes,
    })
}

fn said(asked: &Generation<'_>, own: serde_json::Value, line: String) -> Result<Exit, Failure> {
    if asked.arguments.json {
        say!("{:#}", joined(asked.facts(), own))?;
    } else {
        say!("{line}")?;
    }
    Ok(Exit::Fine)
}

/// Decodes all windows, some together.
fn read(
    decoder: &mut CachedDecoder<'_>,
    windows: &[Vec<u32>],
    stop: &Stop,
) -> Result<Judged, Failure> {
    let mut means = Vec::with_capacity(windows.len());
    let _interruptible = stop.heed();
    for together in windows.chunks(decoder.sequences()) {
        let found = surprise(decoder, together, &mut || !stop.is_requested());
        let Some(found) = found.map_err(failure)? else {
            let read = format!("{} of {} windows were read", means.len(), windows.len());
            return Err(Failure::interrupted(read));
        };
        means.extend(found.iter().map(|of| of.iter().sum::<f64>() / of.len() as f64));
    }
    let tokens = windows.iter().map(|window| window.len() - 1).sum();
    Ok(Judged { windows: means, tokens, cache_bytes: decoder.cache_bytes() })
}
