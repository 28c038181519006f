//! `overdrive tokens`: text to a token file, once for all runs that learn from it.

use crate::cli::Tokens;
use crate::failure::Failure;
use crate::progress::over;
use crate::terminal::{say, tell};
use overdrive::bench::digits::{bytes, count};
use overdrive::bench::exit::Exit;
use overdrive::files::{Place, PlaceRequest};
use overdrive::formats::huggingface::Tokenizer;
use overdrive::train::data::{is_token_file, tokenize};
use overdrive_process::Stop;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

pub(crate) fn tokens(arguments: &Tokens, stop: &Stop) -> Result<Exit, Failure> {
    let out = arguments.out.as_path();
    let file = match arguments.tokenizer.is_dir() {
        true => arguments.tokenizer.join("tokenizer.json"),
        false => arguments.tokenizer.clone(),
    };
    let texts = arguments.texts.iter().map(|text| text.as_path());
    let inputs: Vec<&Path> = texts.chain([file.as_path()]).collect();
    let existing = arguments.replacing.into();
    let request = PlaceRequest { path: out, option: "-o", existing, inputs: &inputs };
    if arguments.replacing.force && out.is_file() {
        check_replaced(out)?;
    }
    let place = Place::file(request).map_err(Failure::bad_input)?;
    let tokenizer = Tokenizer::read(&file, usize::MAX).map_err(Failure::bad_input)?;
    let id = |token: &String| {
        tokenizer.id(token).ok_or_else(|| {
            let file = file.display();
            Failure::bad_input(format!(
                "--separator: expected a token of `{file}`, found `{token}`; name one of its \
                 `added_tokens`"
            ))
        })
    };
    let separator = arguments.separator.as_ref().map(id).transpose()?;
    let _whole = stop.heed();
    let begun = Instant::now();
    let made = over("bytes of text", |show| {
        let mut told = |done: u64, all: u64| {
            show(done as usize, all as usize);
            if stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        place.fill(|path| {
            let by = (&tokenizer, separator);
            let made = tokenize(&arguments.texts, by, (path, out), &mut told);
            let made = made.map_err(Failure::bad_input)?;
            let length = std::fs::metadata(path).map_err(Failure::harness)?.len();
            let interrupted = || Failure::interrupted("nothing was written");
            made.map(|made| (made, length)).ok_or_else(interrupted)
        })
    });
    let (made, length) = made?;
    let seconds = begun.elapsed().as_secs_f64();
    let (text, threads) = (made.text_bytes as f64, made.threads);
    tell!(
        "{} tokens of {} of text, {:.2} bytes each, in {seconds:.1} s: {:.1} MB/s on {threads} \
         threads",
        count(made.tokens),
        bytes(made.text_bytes),
        text / made.tokens as f64,
        text / 1e6 / seconds
    )?;
    say!("tokens: {} ({})", out.display(), bytes(length))?;
    tell!("train on it: overdrive train MODEL --data {} -o DIR", out.display())?;
    Ok(Exit::Fine)
}

/// Errs unless the file to replace is of an earlier call: a slip of `-o` would cost a text.
fn check_replaced(out: &Path) -> Result<(), Failure> {
    if is_token_file(out).map_err(Failure::bad_input)? {
        return Ok(());
    }
    Err(Failure::bad_input(format!(
        "-o: expected a new file, or a token file that --force replaces, found `{}`; name another \
         place with -o",
        out.display()
    )))
}
