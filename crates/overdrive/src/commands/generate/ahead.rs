//! `generate --speculate N`: the draft that proposes tokens, and how often it was right.

use super::asked::{Generation, failure};
use crate::cli::Generate;
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::text;
use overdrive::bench::clock::Clock;
use overdrive::decoding::{
    CachedDecoder, Chooser, DecodeError, Decoder, Generated, LanguageModel, Limits, LookupDraft,
    ModelDraft, Speculation, generate, generate_all,
};
use overdrive::ir::DType;
use overdrive::models::Caches;
use serde_json::{Value, json};

/// Errs where the model of the command cannot check several tokens; reads the draft model.
pub(super) fn draft(arguments: &Generate, model: &Model) -> Result<Option<Model>, Failure> {
    let Some(most) = arguments.speculate else { return Ok(None) };
    let of_model = match model {
        Model::Pretrained(pretrained) => pretrained,
        Model::Template(_) | Model::Onnx(_) => {
            return Err(Failure::bad_input(format!(
                "--speculate {most}: expected a model that keeps keys and values, a folder in \
                 Hugging Face's format or a .gguf file; found `{}`, which has no cache; leave the \
                 option out",
                arguments.model
            )));
        }
    };
    let Some(name) = &arguments.draft else { return Ok(None) };
    let draft = model::load(name)?;
    let Model::Pretrained(of_draft) = &draft else {
        return Err(Failure::bad_input(format!(
            "--draft {name}: expected a folder in Hugging Face's format or a .gguf file, found a \
             model without a cache of keys and values; leave the option out, so that tokens are \
             looked up in the text"
        )));
    };
    text::tokenizer(&draft)?;
    let digest = |of: &overdrive::studies::pretrained::Pretrained| {
        of.tokenizer.as_ref().map(|tokenizer| tokenizer.for_long_texts().digest())
    };
    if digest(of_model) != digest(of_draft) {
        return Err(Failure::bad_input(format!(
            "--draft {name}: expected the tokenizer of `{}`, found another: its tokens mean other \
             texts; give a smaller model of the same family",
            arguments.model
        )));
    }
    Ok(Some(draft))
}

/// How one text is continued.
pub(super) enum Way<'a> {
    /// A token at a time.
    Single(Box<dyn Decoder + 'a>),
    /// Several, which a draft proposes.
    Ahead(Box<(CachedDecoder<'a>, Speculation<'a>)>),
}

impl Way<'_> {
    pub(super) fn prepare(&mut self, prompt: usize, likeliest: bool) -> Result<(), DecodeError> {
        match self {
            Self::Single(decoder) => decoder.prepare(prompt, likeliest),
            Self::Ahead(ahead) => prepare((&mut ahead.0, Some(&mut ahead.1)), prompt, likeliest),
        }
    }

    pub(super) fn generate(
        &mut self,
        prompt: &[u32],
        how: (&Chooser<'_>, &Limits<'_>),
        clock: &dyn Clock,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, DecodeError> {
        match self {
            Self::Single(decoder) => generate(decoder.as_mut(), prompt, how, clock, each),
            Self::Ahead(ahead) => {
                let with = (&mut ahead.0, Some(&mut ahead.1));
                let prompts = [prompt.to_vec()];
                let made = generate_all(with, &prompts, how, clock, &mut |_, token| each(token))?;
                Ok(made.into_iter().next().unwrap_or_default())
            }
        }
    }

    pub(super) fn speculation(&self) -> Option<&Speculation<'_>> {
        match self {
            Self::Single(_) => None,
            Self::Ahead(ahead) => Some(&ahead.1),
        }
    }
}

/// Compiles what a prompt of this length needs.
pub(super) fn prepare(
    (decoder, speculation): (&mut CachedDecoder<'_>, Option<&mut Speculation<'_>>),
    prompt: usize,
    likeliest: bool,
) -> Result<(), DecodeError> {
    decoder.prepare(prompt, likeliest)?;
    let Some(speculation) = speculation else { return Ok(()) };
    decoder.prepare_several(speculation.width(), likeliest)?;
    speculation.prepare(prompt, likeliest)
}

impl Generation<'_> {
    /// The draft that was asked for, for the texts of this decoder.
    pub(super) fn speculation<'m>(
        &'m self,
        decoder: &CachedDecoder<'_>,
    ) -> Result<Option<Speculation<'m>>, Failure> {
        let Some(most) = self.arguments.speculate else { return Ok(None) };
        if self.ranks() > 1 {
            return Err(Failure::bad_input(format!(
                "--speculate {most}: expected one rank, found {}; leave out the option or --nproc",
                self.ranks()
            )));
        }
        let Some((name, draft)) = self.arguments.draft.as_ref().zip(self.draft) else {
            return Ok(Some(Speculation::new(LookupDraft, most as usize)));
        };
        let backend = self.opened.backend.as_ref();
        let native = draft.native_half(backend.description());
        let format = self.arguments.dtype.map(DType::from).or(native).unwrap_or(DType::F32);
        let capacity = decoder.capacity().min(draft.context());
        let caches = Caches::of(decoder.sequences(), capacity);
        let of_draft = CachedDecoder::in_format((backend, self.mode), draft, caches, format)
            .map_err(failure)
            .map_err(|Failure { message, exit }| Failure {
                message: format!("--draft {name}: {message}"),
                exit,
            })?;
        Ok(Some(Speculation::new(ModelDraft::new(of_draft), most as usize)))
    }

    /// The part of a result about a draft.
    pub(super) fn facts_ahead(&self, speculation: &Speculation<'_>) -> Value {
        let counts = speculation.counts();
        json!({ "speculation": {
            "most": speculation.width() - 1, "draft": self.arguments.draft,
            "runs": counts.runs, "proposed": counts.proposed, "accepted": counts.accepted,
            "tokens_per_run": speculation.tokens_per_run(),
        } })
    }
}

/// How often a draft was right, in words behind the line of figures. Whether it pays is no figure
/// of this run: a run of several tokens takes longer than one of a single token.
pub(super) fn told(speculation: &Speculation<'_>) -> String {
    let most = speculation.width() - 1;
    let Some(tokens) = speculation.tokens_per_run() else {
        return format!("; --speculate {most} proposed nothing");
    };
    let counts = speculation.counts();
    format!(
        "; --speculate {most}: {tokens:.2} tokens per run of the model ({} of {} proposed were \
         kept); compare tokens/s with a run without the option",
        counts.accepted, counts.proposed
    )
}
