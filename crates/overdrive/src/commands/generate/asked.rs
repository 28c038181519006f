//! The parts that all ways to generate need: the model, its tokens, the device and how it samples.

use super::attending::AttendingModel;
use crate::asked_attention::OtherAttention;
use crate::cli::Generate;
use crate::commands::ranks::Rank;
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::note;
use crate::text;
use overdrive::bench::digits;
use overdrive::bench::exit::Exit;
use overdrive::decoding::{CachedDecoder, Chooser, DecodeError, LanguageModel, Sampling};
use overdrive::formats::huggingface::Tokenizer;
use overdrive::ir::{Backend, DType, Mode};
use overdrive::models::{CacheCodes, Caches};
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;
use serde_json::{Value, json};

/// Tokens that a text gets where nothing else is asked for.
const TOKENS: usize = 64;

/// Data that all ways need.
pub(super) struct Generation<'a> {
    pub(super) arguments: &'a Generate,
    pub(super) model: &'a Model,
    /// The model that proposes tokens.
    pub(super) draft: Option<&'a Pretrained>,
    /// Texts are neither cut nor filled, whatever its file asks for.
    pub(super) tokenizer: Tokenizer,
    pub(super) opened: Opened,
    pub(super) mode: Mode,
    /// Format of weights, keys and values; `None` for a model whose graph has formats of its own.
    pub(super) format: Option<DType>,
    /// Codes of the cache; `None` keeps numbers of that format.
    pub(super) codes: Option<CacheCodes>,
    /// The model with other attention than its own, where that was asked for.
    pub(super) attending: Option<AttendingModel<'a>>,
    pub(super) sampling: Sampling,
    /// This rank, of several.
    pub(super) rank: Option<&'a Rank>,
}

impl<'a> Generation<'a> {
    pub(super) fn new(
        arguments: &'a Generate,
        (model, draft): (&'a Model, Option<&'a Model>),
        rank: Option<&'a Rank>,
    ) -> Result<Self, Failure> {
        let tokenizer = text::tokenizer(model)?.for_long_texts();
        let opened = devices::open_as(&arguments.machine, rank.map(Rank::place))?;
        if let Some(rank) = rank {
            rank.same_kind(opened.backend.name())?;
        }
        let usual = opened.backend.description().fastest_mode();
        let mode = arguments.mode.map_or(usual, Mode::from);
        devices::check_mode(mode, opened.backend.description(), "--mode")?;
        let format = format_of(model, arguments, opened.backend.as_ref())?;
        let codes = arguments.cache.map(CacheCodes::from);
        if let (Some(codes), Model::Template(_) | Model::Onnx(_)) = (codes, model) {
            return Err(Failure::bad_input(format!(
                "--cache {}: expected a model that keeps keys and values, a folder in Hugging \
                 Face's format or a .gguf file; found `{}`, which has no cache; leave the option \
                 out",
                codes.name(),
                arguments.model
            )));
        }
        if let (Some(share), Some(rank)) = (arguments.attention.gate, rank) {
            return Err(Failure::bad_input(format!(
                "--attention-gate {share}: expected one rank, whose gate has all heads, found {}; \
                 leave out --nproc",
                rank.launch.size
            )));
        }
        let attending = match model {
            Model::Pretrained(published) => {
                OtherAttention::asked(arguments.attention, (&arguments.model, model))?
                    .map(|attention| AttendingModel { model: published, attention })
            }
            Model::Template(_) | Model::Onnx(_) => None,
        };
        let sampling = sampling(arguments)?;
        let draft = draft.and_then(|draft| match draft {
            Model::Pretrained(draft) => Some(draft.as_ref()),
            Model::Template(_) | Model::Onnx(_) => None,
        });
        Ok(Self {
            arguments,
            model,
            draft,
            tokenizer,
            opened,
            mode,
            format,
            codes,
            attending,
            sampling,
            rank,
        })
    }

    /// A decoder with its caches on the device.
    pub(super) fn cached<'m>(
        &'m self,
        pretrained: &'m Pretrained,
        caches: Caches,
    ) -> Result<CachedDecoder<'m>, Failure> {
        let target = (self.opened.backend.as_ref(), self.mode);
        let format = self.format.unwrap_or(DType::F32);
        let caches = Caches { codes: self.codes, ..caches };
        let model = self.attending.as_ref().map_or(pretrained as &dyn LanguageModel, |model| model);
        CachedDecoder::in_format(target, model, caches, format).map_err(failure)
    }

    /// Tokens that a text may have behind its prompt.
    pub(super) fn max_tokens(&self) -> usize {
        self.arguments.max_tokens.map_or(TOKENS, |tokens| tokens as usize)
    }

    /// Chooses the tokens, the same on all ranks.
    pub(super) fn chooser(&self) -> Chooser<'_> {
        Chooser::new(&self.sampling, self.rank.map(|rank| rank.communicator.as_ref()))
    }

    /// Whether this process prints: alone, or for all ranks.
    pub(super) fn speaks(&self) -> bool {
        self.rank.is_none_or(Rank::is_first)
    }

    /// Ranks that decode together.
    pub(super) fn ranks(&self) -> usize {
        self.rank.map_or(1, |rank| rank.launch.size)
    }

    /// Ends the command, on all ranks at the same token; `made` says how many tokens there are.
    pub(super) fn end(
        &self,
        (stop, all_goes_on): (&Stop, bool),
        made: String,
    ) -> Result<Exit, Failure> {
        if let Some(rank) = self.rank {
            rank.communicator.leave();
        }
        match (stop.is_requested(), self.speaks()) {
            (false, _) if all_goes_on => Ok(Exit::Fine),
            (true, true) => Err(Failure::interrupted(made)),
            (true, false) => Ok(Exit::Interrupted),
            (false, true) => {
                let message = format!("{made}, since another rank was asked to end");
                Err(Failure { message, exit: Exit::OtherRank })
            }
            (false, false) => Ok(Exit::OtherRank),
        }
    }

    /// Facts of a run that do not depend on its texts.
    pub(super) fn facts(&self) -> Value {
        let Self { arguments, opened, .. } = self;
        json!({
            "model": arguments.model, "device": opened.backend.name(), "threads": opened.threads,
            "ranks": self.ranks(),
            "mode": self.mode.name(), "dtype": self.format.map(|dtype| dtype.to_string()),
            "cache": self.codes.map(CacheCodes::name),
        })
    }

    /// The room that caches take on this rank's device, in words.
    pub(super) fn caches(&self, bytes: u64) -> String {
        let codes = self.codes.map_or(String::new(), |codes| format!(" as {}", codes.name()));
        format!("; keys and values{codes} take {}", digits::bytes(bytes))
    }

    /// `bf16 weights: `, where they have a format.
    pub(super) fn weights(&self) -> String {
        let codes = matches!(self.model, Model::Pretrained(model) if model.codes().is_some());
        let codes = if codes { "codes and " } else { "" };
        self.format.map_or(String::new(), |dtype| format!("{codes}{dtype} weights: "))
    }
}

/// How tokens are drawn. Errs where an option would change nothing.
fn sampling(arguments: &Generate) -> Result<Sampling, Failure> {
    let Generate { temperature, top_k, top_p, .. } = *arguments;
    let top_k_given = top_k.map(|k| format!("--top-k {k}"));
    let narrowed = top_k_given.or_else(|| (top_p < 1.0).then(|| format!("--top-p {top_p}")));
    if let (Some(option), true) = (narrowed, temperature == 0.0) {
        return Err(Failure::bad_input(format!(
            "{option}: expected a --temperature above 0, found 0, which always takes the likeliest \
             token; give one, such as --temperature 0.8, or leave the option out"
        )));
    }
    let top_k = top_k.map(|k| k as usize);
    Ok(Sampling { temperature, top_k, top_p, seed: arguments.machine.seed })
}

/// An object with the members of both.
pub(super) fn joined(mut first: Value, second: Value) -> Value {
    if let (Some(first), Value::Object(second)) = (first.as_object_mut(), second) {
        first.extend(second);
    }
    first
}

/// The requested number format, or that of the folder if the device multiplies it directly. Reports
/// why a folder of 16 bits is widened. `None` for a model whose graph has formats of its own.
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
    let stored = pretrained.stored_half().filter(|_| pretrained.coding.is_none());
    let native = pretrained.native_half(backend.description());
    if let (None, Some(half), None) = (asked, stored, native) {
        note!(
            "note: {half} weights are widened to f32: this device has no instructions for products \
             of {half}; `--dtype {half}` keeps them"
        );
    }
    Ok(Some(asked.or(native).unwrap_or(DType::F32)))
}

pub(super) fn failure(error: DecodeError) -> Failure {
    match error {
        DecodeError::Backend(error) => devices::failure(error),
        DecodeError::NoNumber(_) => Failure::harness(error),
        DecodeError::EmptyPrompt
        | DecodeError::Full { .. }
        | DecodeError::Pages { .. }
        | DecodeError::NotText(_)
        | DecodeError::Graph(_) => Failure::bad_input(error),
    }
}
