//! `overdrive generate`: goes on from a text, and says how fast.

mod several;

use crate::cli::Generate;
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::terminal::{self, note, say};
use crate::text::{self, Stream};
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::exit::Exit;
use overdrive::formats::huggingface::Tokenizer;
use overdrive::ir::{Backend, DType, Mode};
use overdrive::models::Caches;
use overdrive::studies::decoding::{
    CachedDecoder, DecodeError, Decoder, Generated, Limits, Sampling, WindowDecoder,
    generate as decode,
};
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;
use serde_json::{Value, json};

pub(crate) fn generate(arguments: &Generate, stop: &Stop) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let asked = Asked::new(arguments, &model)?;
    match (&arguments.prompts, &arguments.prompt) {
        (Some(file), _) => several::generate(asked, file, stop),
        (None, Some(prompt)) => one(asked, prompt, stop),
        (None, None) => unreachable!("one of both is required"),
    }
}

/// What both ways need.
struct Asked<'a> {
    arguments: &'a Generate,
    model: &'a Model,
    tokenizer: &'a Tokenizer,
    opened: Opened,
    mode: Mode,
    /// Of weights, keys and values; none for a model whose graph has formats of its own.
    format: Option<DType>,
    sampling: Sampling,
}

impl<'a> Asked<'a> {
    fn new(arguments: &'a Generate, model: &'a Model) -> Result<Self, Failure> {
        let tokenizer = text::tokenizer(model)?;
        let opened = devices::open(&arguments.machine)?;
        let usual = opened.backend.description().fastest_mode();
        let mode = arguments.mode.map_or(usual, Mode::from);
        let format = format_of(model, arguments, opened.backend.as_ref())?;
        let sampling = Sampling {
            temperature: arguments.temperature,
            top_k: arguments.top_k.map(|k| k as usize),
            top_p: arguments.top_p,
            seed: arguments.machine.seed,
        };
        Ok(Self { arguments, model, tokenizer, opened, mode, format, sampling })
    }

    /// A decoder with its caches on the device.
    fn cached<'m>(
        &'m self,
        pretrained: &'m Pretrained,
        caches: Caches,
    ) -> Result<CachedDecoder<'m>, Failure> {
        let target = (self.opened.backend.as_ref(), self.mode);
        let format = self.format.unwrap_or(DType::F32);
        CachedDecoder::in_format(target, pretrained, caches, format).map_err(failure)
    }

    /// Facts of a run that do not depend on its texts.
    fn facts(&self) -> Value {
        let Self { arguments, opened, .. } = self;
        json!({
            "model": arguments.model, "device": opened.backend.name(), "threads": opened.threads,
            "mode": self.mode.name(), "dtype": self.format.map(|dtype| dtype.to_string()),
        })
    }

    /// `bf16 weights: `, where they have a format.
    fn weights(&self) -> String {
        let codes = matches!(self.model, Model::Pretrained(model) if model.coding.is_some());
        let codes = if codes { "codes and " } else { "" };
        self.format.map_or(String::new(), |dtype| format!("{codes}{dtype} weights: "))
    }
}

fn one(asked: Asked<'_>, prompt: &str, stop: &Stop) -> Result<Exit, Failure> {
    let Asked { arguments, model, tokenizer, .. } = asked;
    let prompt = text::encode(tokenizer, prompt)?;
    let most = arguments.max_tokens as usize;
    let (mut decoder, ends): (Box<dyn Decoder>, &[u32]) = match model {
        Model::Pretrained(pretrained) => {
            let caches = Caches::of_one(prompt.len().saturating_add(most));
            (Box::new(asked.cached(pretrained, caches)?), &pretrained.ends)
        }
        Model::Template(_) | Model::Onnx(_) => {
            let graph = model.bind(&[("batch".to_owned(), 1)].into())?.graph;
            note!(
                "note: this model keeps no keys and values: its whole window is computed for \
                 every token"
            );
            let target = (asked.opened.backend.as_ref(), asked.mode);
            (Box::new(WindowDecoder::new(target, &graph).map_err(failure)?), &[])
        }
    };
    let clock = SystemClock::new();
    let start = clock.now_ns();
    decoder.prepare(prompt.len()).map_err(failure)?;
    let prepare_s = (clock.now_ns() - start) as f64 / 1e9;

    let _text_so_far = stop.heed();
    let mut stream = Stream::after(tokenizer, &prompt);
    let mut text = String::new();
    let mut shown = Ok(());
    let mut show = |piece: String| {
        if !arguments.json && shown.is_ok() {
            shown = terminal::write(format_args!("{piece}"));
        }
        text.push_str(&piece);
        shown.is_ok()
    };
    let limits = Limits { tokens: most, ends };
    let made =
        decode(decoder.as_mut(), &prompt, (&asked.sampling, &limits), &clock, &mut |token| {
            show(stream.push(token)) && !stop.is_requested()
        });
    let made = made.map_err(failure)?;
    show(stream.finish());
    shown?;
    if arguments.json {
        let own = json!({
            "prompt_tokens": prompt.len(), "tokens": made.tokens, "text": text,
            "prepare_s": prepare_s,
            "first_token_s": made.first_token_s(), "tokens_per_second": made.tokens_per_second(),
        });
        say!("{:#}", joined(asked.facts(), own))?;
    } else {
        say!("")?;
        note!("{}{}", asked.weights(), figures(&made, prompt.len(), prepare_s));
    }
    if stop.is_requested() {
        return Err(Failure::interrupted(format!(
            "{} of {most} tokens were made",
            made.tokens.len()
        )));
    }
    Ok(Exit::Fine)
}

/// An object with the members of both.
fn joined(mut first: Value, second: Value) -> Value {
    if let (Some(first), Value::Object(second)) = (first.as_object_mut(), second) {
        first.extend(second);
    }
    first
}

/// The number format that was asked for, or the folder's where the device multiplies it as it
/// lies; says why a folder of 16 bits is widened. None for a model whose graph has formats of its
/// own.
fn format_of(
    model: &Model,
    arguments: &Generate,
    backend: &dyn Backend,
) -> Result<Option<DType>, Failure> {
    let asked = arguments.dtype.map(DType::from);
    let Model::Pretrained(pretrained) = model else {
        return match asked {
            None => Ok(None),
            Some(found) => Err(Failure::bad_input(format!(
                "`--dtype {found}`: expected a folder in Hugging Face's format, found `{}`, whose \
                 graph has its own formats; leave out `--dtype`",
                arguments.model
            ))),
        };
    };
    let stored = pretrained.stored_half();
    let native = stored.filter(|half| backend.description().native_halves.contains(half));
    if let (None, Some(half), None) = (asked, stored, native) {
        note!(
            "note: {half} weights are widened to f32: this device has no instructions for products \
             of {half}; `--dtype {half}` keeps them"
        );
    }
    Ok(Some(asked.or(native).unwrap_or(DType::F32)))
}

/// One text is one sample: times are told as such, and no interval is.
fn figures(made: &Generated, prompt: usize, prepare_s: f64) -> String {
    let first = made
        .first_token_s()
        .map_or(String::new(), |s| format!("first token after {:.1} ms", s * 1e3));
    let rate = made.tokens_per_second().map_or(String::new(), |rate| {
        format!(", then {rate:.1} tokens/s (n = {})", made.times_ns.len() - 1)
    });
    format!(
        "{prompt} tokens read, {} made: {first}{rate}; compiled in {prepare_s:.2} s",
        made.tokens.len()
    )
}

fn failure(error: DecodeError) -> Failure {
    match error {
        DecodeError::Backend(error) => devices::failure(error),
        DecodeError::NoNumber(_) => Failure::harness(error),
        DecodeError::EmptyPrompt
        | DecodeError::Full { .. }
        | DecodeError::NotText(_)
        | DecodeError::Graph(_) => Failure::bad_input(error),
    }
}
