//! Tokens of a decoder as something to be timed.

use super::behind::{Behind, Part};
use crate::pretrained::Pretrained;
use overdrive_bench::deviation::{Deviation, Tolerance};
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::Oracle;
use overdrive_bench::subject::Subject;
use overdrive_bench::work::Work;
use overdrive_decoding::{CachedDecoder, DecodeError, Decoder, LanguageModel};
use overdrive_ir::ops::Embedding;
use overdrive_ir::{DType, Graph, Prim, Tensor, Value};
use overdrive_models::{Caches, Span};
use std::ops::Range;

/// First tokens one after another, or next tokens at positions that follow each other. Once the
/// caches are full, the texts are read again before the next sample.
pub(super) struct Tokens<'a> {
    pub(super) decoder: CachedDecoder<'a>,
    pub(super) model: &'a Pretrained,
    pub(super) work: Work,
    place: Behind,
    format: DType,
    texts: &'a [Vec<u32>],
    /// Tokens of each sequence in the caches.
    seen: usize,
    held_to: (&'a Oracle<'a>, Tolerance),
}

impl<'a> Tokens<'a> {
    pub(super) fn new(
        (mut decoder, model): (CachedDecoder<'a>, &'a Pretrained),
        (place, format): (Behind, DType),
        texts: &'a [Vec<u32>],
        held_to: (&'a Oracle<'a>, Tolerance),
    ) -> Result<Self, DecodeError> {
        decoder.prepare(place.tokens, false)?;
        let caches = decoder.caches();
        let span = match place.part {
            Part::First => {
                let tokens = CachedDecoder::room(place.tokens, caches.capacity);
                Span::Prefill { tokens, caches }
            }
            Part::Next => Span::Step { caches },
        };
        let graph = model.unloaded(span, format)?;
        let (flops, items) = (graph.cost().flops, Some(place.items()));
        let work = Work { flops, bytes: bytes(&graph, place, caches.capacity), items };
        let mut tokens = Self { decoder, model, work, place, format, texts, seen: 0, held_to };
        tokens.again()?;
        Ok(tokens)
    }

    /// The format of the model.
    pub(super) fn format(&self) -> DType {
        self.format
    }

    /// Reads the texts; the logits of the last one.
    fn again(&mut self) -> Result<Vec<f32>, DecodeError> {
        let mut logits = vec![];
        for (sequence, text) in self.texts.iter().enumerate() {
            logits = self.decoder.join(sequence, &text[..self.place.tokens])?;
        }
        self.seen = self.place.tokens;
        Ok(logits)
    }

    /// The logits of each sequence after one more token.
    fn next(&mut self) -> Result<Vec<f32>, DecodeError> {
        let token = |text: &Vec<u32>| text.get(self.seen % text.len()).copied();
        let tokens: Vec<Option<u32>> = self.texts.iter().map(token).collect();
        let logits = self.decoder.step(&tokens)?;
        self.seen += 1;
        Ok(logits)
    }
}

/// Bytes that a call must read. These are weights, rows of a table that is only looked up, and what
/// caches hold before the token.
pub(super) fn bytes(graph: &Graph, place: Behind, capacity: usize) -> u64 {
    let rows_alone = |value: Value| {
        let mut readers = graph.nodes().iter().filter(|node| node.operands.contains(&value));
        let looks_up = |prim: Option<&Prim>| matches!(prim, Some(Prim::Gather { .. }));
        readers.all(|node| node.op.composite::<Embedding>().is_some() || looks_up(node.op.prim()))
    };
    let of = |state: &overdrive_ir::StateDecl| {
        let ty = graph.ty(state.value);
        let all = ty.bytes() as u64;
        if Caches::holds(&state.name) {
            return all * (place.tokens + 1).min(capacity) as u64 / capacity.max(1) as u64;
        }
        match rows_alone(state.value) {
            true => all / ty.sizes()[0].max(1) as u64 * place.sequences as u64,
            false => all,
        }
    };
    graph.states().iter().map(of).sum()
}

fn failed(error: DecodeError) -> Failure {
    match error {
        DecodeError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}

impl Subject for Tokens<'_> {
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        let needed = (calls.end - calls.start) as usize;
        if self.place.part == Part::Next && self.seen + needed > self.decoder.capacity() {
            self.again().map_err(failed)?;
        }
        Ok(())
    }

    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        match self.place.part {
            Part::First => self.again().map_err(failed)?,
            Part::Next => {
                if self.seen == self.decoder.capacity() {
                    self.again().map_err(failed)?;
                }
                self.next().map_err(failed)?
            }
        };
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        let mut logits = self.again().map_err(failed)?;
        if self.place.part == Part::Next {
            logits = self.next().map_err(failed)?;
        }
        let shape = [self.texts.len(), logits.len() / self.texts.len()];
        let (oracle, limit) = self.held_to;
        oracle.compare_part(seed, &[Tensor::from_f32(shape, &logits)], limit).map(Some)
    }

    fn reference(&self) -> &str {
        self.held_to.0.name()
    }
}
