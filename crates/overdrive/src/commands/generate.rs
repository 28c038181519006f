//! `overdrive generate`: continues a text, and says how fast.

mod ahead;
mod asked;
mod attending;
mod judged;
mod perplexity;
mod policies;
mod rank;
mod several;
mod whole;

use super::ranks::{self, Launched};
use crate::asked_attention;
use crate::cli::Generate;
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::terminal::{self, note, say};
use crate::text::{self, TextStream};
use ahead::Way;
use asked::{Generation, failure, joined};
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::exit::Exit;
use overdrive::decoding::{Generated, Limits, WindowDecoder};
use overdrive::models::Caches;
use overdrive_process::Stop;
use serde_json::json;

/// The axis along which ranks share the layers.
const TENSOR: &str = "tensor";

pub(crate) fn generate(arguments: &Generate, stop: &Stop) -> Result<Exit, Failure> {
    if let Some(mesh) = &arguments.ranks.mesh
        && let Some((axis, _)) = mesh.axes.iter().find(|(axis, _)| *axis.0 != *TENSOR)
    {
        return Err(Failure::bad_input(format!(
            "--mesh {mesh}: expected the axis `{TENSOR}` alone, along which ranks share the \
             layers, found `{axis}`; use {TENSOR}={}",
            mesh.ranks()
        )));
    }
    let options = (&arguments.ranks, &arguments.machine, TENSOR);
    ranks::run(options, stop, |launched| as_rank(launched, arguments, stop))
}

/// All of it, or that of one rank.
fn as_rank(launched: Option<Launched>, arguments: &Generate, stop: &Stop) -> Result<Exit, Failure> {
    // First of all, so that the others hear of whatever fails here.
    let rank = launched.map(Launched::join).transpose()?;
    let model = match &rank {
        Some(rank) => model::load_part(&arguments.model, rank.communicator.as_ref())?,
        None => model::load(&arguments.model)?,
    };
    let draft = ahead::draft(arguments, &model)?;
    let asked = Generation::new(arguments, (&model, draft.as_ref()), rank.as_ref())?;
    match (&arguments.judge, &arguments.prompts, &arguments.prompt) {
        (Some(file), ..) => judged::judge(&asked, file, stop),
        (None, Some(file), _) => several::generate(asked, file, stop),
        (None, None, Some(prompt)) => one(asked, prompt, stop),
        (None, None, None) => unreachable!("one of the three is required"),
    }
}

fn one(asked: Generation<'_>, prompt: &str, stop: &Stop) -> Result<Exit, Failure> {
    let Generation { arguments, model, .. } = asked;
    let tokenizer = &asked.tokenizer;
    let prompt = text::encode(tokenizer, prompt)?;
    if let Some(rank) = asked.rank {
        rank::check(rank, &asked, std::slice::from_ref(&prompt))?;
    }
    let most = asked.max_tokens();
    let (mut way, ends, bytes): (Way<'_>, &[u32], Option<u64>) = match model {
        Model::Pretrained(pretrained) => {
            let caches = Caches::of_one(prompt.len().saturating_add(most));
            let decoder = asked.cached(pretrained, caches)?;
            let bytes = decoder.cache_bytes();
            let way = match asked.speculation(&decoder)? {
                Some(speculation) => Way::Ahead(Box::new((decoder, speculation))),
                None => Way::Single(Box::new(decoder)),
            };
            (way, &pretrained.ends, Some(bytes))
        }
        Model::Template(_) | Model::Onnx(_) => {
            let graph = model.bind(&[("batch".to_owned(), 1)].into())?.graph;
            let named = (arguments.model.as_str(), model);
            let graph = asked_attention::applied(arguments.attention, named, graph)?;
            let graph = match asked.rank {
                Some(rank) => rank::part(&graph, rank)?,
                None => graph,
            };
            note!(
                "note: this model keeps no keys and values: its whole window is computed for \
                 every token"
            );
            let target = (asked.opened.backend.as_ref(), asked.mode);
            let decoder = WindowDecoder::new(target, &graph).map_err(failure)?;
            (Way::Single(Box::new(decoder)), &[], None)
        }
    };
    let clock = SystemClock::new();
    let start = clock.now_ns();
    way.prepare(prompt.len(), asked.chooser().is_greedy()).map_err(failure)?;
    let prepare_s = (clock.now_ns() - start) as f64 / 1e9;

    let _text_so_far = stop.heed();
    let mut stream = TextStream::after(tokenizer, &prompt);
    let mut text = String::new();
    let mut shown = Ok(());
    let mut show = |piece: String| {
        if !arguments.json && asked.speaks() && shown.is_ok() {
            shown = terminal::write_made(&piece);
        }
        text.push_str(&piece);
        shown.is_ok()
    };
    let limits = Limits { tokens: most, ends };
    let chooser = asked.chooser();
    let made = way.generate(&prompt, (&chooser, &limits), &clock, &mut |token| {
        show(stream.push(token)) && !stop.is_requested()
    });
    let made = made.map_err(failure)?;
    show(stream.finish());
    shown?;
    if asked.speaks() && arguments.json {
        let own = json!({
            "prompt_tokens": prompt.len(), "tokens": made.tokens, "text": text,
            "prepare_s": prepare_s, "cache_bytes": bytes,
            "first_token_s": made.first_token_s(), "tokens_per_second": made.tokens_per_second(),
        });
        let ahead = way.speculation().map_or(json!({}), |ahead| asked.facts_ahead(ahead));
        say!("{:#}", joined(joined(asked.facts(), own), ahead))?;
    } else if asked.speaks() {
        say!("")?;
        let caches = bytes.map_or(String::new(), |bytes| asked.caches(bytes));
        let ahead = way.speculation().map_or(String::new(), ahead::told);
        note!("{}{}{caches}{ahead}", asked.weights(), figures(&made, prompt.len(), prepare_s));
    }
    let count = format!("{} of {most} tokens were made", made.tokens.len());
    asked.end((stop, chooser.goes_on()), count)
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
