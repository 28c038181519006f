//! The step of decoding, which `--decode` times in place of a whole call. It computes one more
//! token of each sequence, with the keys and values of those before it in caches.

use crate::commands::quantize::{Chosen, Subject};
use crate::failure::Failure;
use overdrive::decoding::{CachedDecoder, LanguageModel};
use overdrive::ir::{Backend, DType, Description, Graph, GraphError, Tensor};
use overdrive::models::{CacheCodes, Caches, Span};
use overdrive::studies::pretrained::{Coding, Pretrained};
use serde_json::Value;

/// A step of a published decoder.
#[derive(Copy, Clone)]
pub(super) struct DecodingStep<'a> {
    model: &'a Pretrained,
    caches: Caches,
    /// Tokens before the one that is timed.
    before: usize,
    device: &'a Description,
}

impl<'a> DecodingStep<'a> {
    /// The step that follows so many tokens of each of so many sequences.
    pub(super) fn of(
        subject: &'a Subject,
        (before, sequences): (usize, usize),
        backend: &'a dyn Backend,
    ) -> Result<Self, Failure> {
        let refused = |text: String| Failure::bad_input(format!("--decode {before}: {text}"));
        let Some(model) = subject.published() else {
            return Err(refused(
                "expected a decoder in Hugging Face's format or a .gguf file, whose graphs keep \
                 keys and values; found a model of whole calls: leave out --decode"
                    .to_owned(),
            ));
        };
        let (most, capacity) = (model.context(), before + 1);
        let device = backend.description();
        let room = CachedDecoder::room(capacity, most);
        let caches = Caches::of(sequences, room);
        model
            .unloaded(Span::Step { caches }, DType::F32)
            .map_err(|error| refused(error.to_string()))?;
        if capacity > most {
            return Err(refused(format!(
                "expected at most {}, since the model reads {most} tokens",
                most.saturating_sub(1)
            )));
        }
        Ok(Self { model, before, caches, device })
    }

    /// The step with a cache of these codes.
    pub(super) fn with(self, codes: Option<CacheCodes>) -> Self {
        Self { caches: Caches { codes, ..self.caches }, ..self }
    }

    /// The step of the float model, or of a form of it, in the format in which `generate` has it.
    pub(super) fn graph(&self, form: Option<&Chosen>) -> Result<Graph, GraphError> {
        let step = |model: &Pretrained| {
            let format = model.native_half(self.device).unwrap_or(DType::F32);
            model.graph(Span::Step { caches: self.caches }, format)
        };
        match form {
            None => step(self.model),
            Some(Chosen { name, made, .. }) => {
                let coding = Coding::of(name, made, Value::Null);
                step(&self.model.with_codes(&made.graph, coding))
            }
        }
    }

    /// The step of the float model in f32: its layers are those of the model, one by one.
    pub(super) fn in_f32(&self) -> Result<Graph, GraphError> {
        self.model.graph(Span::Step { caches: self.caches }, DType::F32)
    }

    /// A token of each sequence, behind those before it.
    pub(super) fn inputs(&self, seed: u64) -> Vec<Tensor> {
        let sequences = self.caches.sequences;
        let vocabulary = self.model.architecture.vocabulary() as u64;
        let token = |sequence: u64| (seed.wrapping_mul(7919) + 31 * sequence) % vocabulary.max(1);
        let tokens: Vec<i128> = (0..sequences as u64).map(|one| token(one).into()).collect();
        let place = match sequences {
            1 => Tensor::scalar(DType::I64, self.before as f64),
            _ => Tensor::from_ints(DType::I64, [sequences], &vec![self.before as i128; sequences]),
        };
        vec![Tensor::from_ints(DType::I32, [sequences, 1], &tokens), place]
    }
}
