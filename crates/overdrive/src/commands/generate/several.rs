//! `overdrive generate --prompts FILE`: continues each line of a file, several at a time.

use super::asked::{Generation, failure, joined};
use super::{ahead, rank};
use crate::cli::Generate;
use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::{self, note, say};
use crate::text::{self, TextStream, counted};
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::exit::Exit;
use overdrive::decoding::{Generated, LanguageModel, Limits, generate_all};
use overdrive::files;
use overdrive::models::{Caches, Pages};
use overdrive_process::Stop;
use serde_json::json;
use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::path::Path;

/// Texts that are decoded together where nothing else is asked for.
const BATCH: usize = 8;
/// The longest file of prompts, in bytes.
const LONGEST: u64 = 64 << 20;
/// Characters of a prompt that name its text.
const NAMED: usize = 60;

pub(super) fn generate(asked: Generation<'_>, file: &Path, stop: &Stop) -> Result<Exit, Failure> {
    let Model::Pretrained(pretrained) = asked.model else {
        return Err(Failure::bad_input(format!(
            "`--prompts`: expected a model that keeps keys and values, a folder in Hugging Face's \
             format or a .gguf file; found `{}`; give one text by `--prompt`",
            asked.arguments.model
        )));
    };
    if let (Some(size), ranks @ 2..) = (asked.arguments.page_size, asked.ranks()) {
        return Err(Failure::bad_input(format!(
            "--page-size {size}: expected one rank, found {ranks}: ranks share heads, and a pool \
             of pages has all heads of a page together; leave the option out"
        )));
    }
    let lines = files::read_text(file, LONGEST).map_err(Failure::bad_input)?;
    let (blank, texts): (Vec<_>, Vec<_>) =
        lines.lines().enumerate().partition(|(_, line)| line.trim().is_empty());
    if texts.is_empty() {
        return Err(Failure::bad_input(format!(
            "`{}`: expected a text on each line, found none",
            file.display()
        )));
    }
    if !blank.is_empty() && asked.speaks() {
        let (file, count) = (file.display(), counted(blank.len(), "blank line"));
        note!("note: left out of `{file}`: {count}; the other lines keep their numbers");
    }
    let of_line = |line: usize, failure: Failure| {
        let message =
            format!("`{}`, line {line} (counted from 0): {}", file.display(), failure.message);
        Failure { message, ..failure }
    };
    let encoded = |&(line, text): &(usize, &str)| {
        text::encode(&asked.tokenizer, text).map_err(|failure| of_line(line, failure))
    };
    let prompts = texts.iter().map(encoded).collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<usize> = texts.iter().map(|&(line, _)| line).collect();
    if let Some(rank) = asked.rank {
        rank::check(rank, &asked, &prompts)?;
    }
    let most = asked.max_tokens();
    let (longest, of_longest) =
        prompts.iter().map(Vec::len).zip(numbers.iter().copied()).max().unwrap_or_default();
    let batch = asked.arguments.batch.map_or(BATCH, |batch| batch as usize).min(prompts.len());
    let capacity = longest.saturating_add(most);
    let needs = prompts.iter().map(|prompt| prompt.len().saturating_add(most));
    let pages = pages(asked.arguments, needs, batch);
    let caches = Caches { pages, ..Caches::of(batch, capacity) };
    let decoder = asked.cached(pretrained, caches);
    // Without this room the longest text has none.
    let is_long = capacity > pretrained.context();
    let mut decoder =
        decoder.map_err(|failure| if is_long { of_line(of_longest, failure) } else { failure })?;
    let mut speculation = asked.speculation(&decoder)?;
    let clock = SystemClock::new();
    let start = clock.now_ns();
    for prompt in &prompts {
        let with = (&mut decoder, speculation.as_mut());
        ahead::prepare(with, prompt.len(), asked.chooser().is_greedy()).map_err(failure)?;
    }
    let prepare_s = (clock.now_ns() - start) as f64 / 1e9;

    let _texts_so_far = stop.heed();
    let limits = Limits { tokens: most, ends: &pretrained.ends };
    let start = clock.now_ns();
    let chooser = asked.chooser().with_numbers(&numbers);
    let how = (&chooser, &limits);
    let with = (&mut decoder, speculation.as_mut());
    let made = generate_all(with, &prompts, how, &clock, &mut |_, _| !stop.is_requested());
    let made = made.map_err(failure)?;
    let total_s = (clock.now_ns() - start) as f64 / 1e9;
    let tokens: usize = made.iter().map(|text| text.tokens.len()).sum();
    let rate = tokens as f64 / total_s;
    let written = |prompt: &[u32], made: &Generated| {
        let mut stream = TextStream::after(&asked.tokenizer, prompt);
        let pieces: String = made.tokens.iter().map(|&token| stream.push(token)).collect();
        pieces + &stream.finish()
    };
    let written: Vec<String> = prompts.iter().zip(&made).map(|(p, m)| written(p, m)).collect();
    if asked.speaks() && asked.arguments.json {
        let of_text = |(((prompt, made), text), line): (((&Vec<u32>, &Generated), &String), _)| {
            json!({
                "line": line, "prompt_tokens": prompt.len(), "tokens": made.tokens, "text": text,
                "first_token_s": made.first_token_s(),
                "last_token_s": made.times_ns.last().map(|&ns| ns as f64 / 1e9),
            })
        };
        let texts: Vec<_> =
            prompts.iter().zip(&made).zip(&written).zip(&numbers).map(of_text).collect();
        let own = json!({
            "batch": batch, "prepare_s": prepare_s, "total_s": total_s,
            "cache_bytes": decoder.cache_bytes(), "tokens_per_second": rate, "texts": texts,
        });
        let ahead = speculation.as_ref().map_or(json!({}), |ahead| asked.facts_ahead(ahead));
        say!("{:#}", joined(joined(asked.facts(), own), ahead))?;
    } else if asked.speaks() {
        for ((line, prompt), text) in texts.iter().zip(&written) {
            let name: String = prompt.chars().take(NAMED).collect();
            let rest = if name.len() < prompt.len() { "..." } else { "" };
            terminal::write_made(&format!("[{line}] {name}{rest}\n{text}\n\n"))?;
        }
        note!(
            "{}{} texts, {batch} at a time, {tokens} tokens made in {total_s:.2} s: {rate:.1} \
             tokens/s in all, prompts included; compiled in {prepare_s:.2} s{}{}",
            asked.weights(),
            made.len(),
            asked.caches(decoder.cache_bytes()),
            speculation.as_ref().map_or(String::new(), ahead::told)
        );
    }
    asked.end((stop, chooser.goes_on()), format!("{tokens} tokens were made"))
}

/// The pool that was asked for; without a number of pages, as many as the longest texts take that
/// can be decoded together. `needs` has the tokens of each text.
fn pages(arguments: &Generate, needs: impl Iterator<Item = usize>, batch: usize) -> Option<Pages> {
    let size = arguments.page_size.and_then(|size| NonZeroUsize::new(size as usize))?;
    let mut each: Vec<usize> = needs.map(|tokens| tokens.div_ceil(size.get())).collect();
    each.sort_unstable_by_key(|&pages| Reverse(pages));
    let most = || each.iter().take(batch).fold(0usize, |all, &pages| all.saturating_add(pages));
    let count = arguments.pages.map_or_else(most, |pages| pages as usize);
    Some(Pages { size, count })
}
