//! `overdrive generate`: goes on from a text, and says how fast.

use crate::cli::Generate;
use crate::devices;
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::terminal::{self, note, say};
use crate::text::{self, Stream};
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::exit::Exit;
use overdrive::ir::{Backend, DType, Mode};
use overdrive::studies::decoding::{
    CachedDecoder, DecodeError, Decoder, Generated, Limits, Sampling, WindowDecoder,
    generate as decode,
};
use overdrive_process::Stop;
use serde_json::json;

pub(crate) fn generate(arguments: &Generate, stop: &Stop) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let tokenizer = text::tokenizer(&model)?;
    let prompt = text::encode(tokenizer, &arguments.prompt)?;
    let opened = devices::open(&arguments.machine)?;
    let usual = opened.backend.description().fastest_mode();
    let target = (opened.backend.as_ref(), arguments.mode.map_or(usual, Mode::from));
    let most = arguments.max_tokens as usize;
    let format = format_of(&model, arguments, opened.backend.as_ref())?;
    let (mut decoder, ends): (Box<dyn Decoder>, &[u32]) = match &model {
        Model::Pretrained(pretrained) => {
            let room = prompt.len().saturating_add(most);
            let decoder =
                CachedDecoder::in_format(target, pretrained, room, format.unwrap_or(DType::F32))
                    .map_err(failure)?;
            (Box::new(decoder), &pretrained.ends)
        }
        Model::Template(_) | Model::Onnx(_) => {
            let graph = model.bind(&[("batch".to_owned(), 1)].into())?.graph;
            note!(
                "note: this model keeps no keys and values: its whole window is computed for \
                 every token"
            );
            (Box::new(WindowDecoder::new(target, &graph).map_err(failure)?), &[])
        }
    };
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_k: arguments.top_k.map(|k| k as usize),
        top_p: arguments.top_p,
        seed: arguments.machine.seed,
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
    let made = decode(decoder.as_mut(), &prompt, (&sampling, &limits), &clock, &mut |token| {
        show(stream.push(token)) && !stop.is_requested()
    });
    let made = made.map_err(failure)?;
    show(stream.finish());
    shown?;
    if arguments.json {
        let object = json!({
            "model": arguments.model, "device": opened.backend.name(), "threads": opened.threads,
            "mode": target.1.name(), "dtype": format.map(|dtype| dtype.to_string()),
            "prompt_tokens": prompt.len(), "tokens": made.tokens, "text": text,
            "prepare_s": prepare_s,
            "first_token_s": made.first_token_s(), "tokens_per_second": made.tokens_per_second(),
        });
        say!("{object:#}")?;
    } else {
        say!("")?;
        let codes = matches!(&model, Model::Pretrained(pretrained) if pretrained.coding.is_some());
        let codes = if codes { "codes and " } else { "" };
        let weights = format.map_or(String::new(), |dtype| format!("{codes}{dtype} weights: "));
        note!("{weights}{}", figures(&made, prompt.len(), prepare_s));
    }
    if stop.is_requested() {
        return Err(Failure::interrupted(format!(
            "{} of {most} tokens were made",
            made.tokens.len()
        )));
    }
    Ok(Exit::Fine)
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
