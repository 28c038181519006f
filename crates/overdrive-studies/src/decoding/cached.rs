//! Decoding with a cache of keys and values: one executable per length of prompt, one for every
//! next token.
//!
//! All of them share one `State` by name: weights, and caches that are updated where they are.
//! Lengths of prompts are rounded up to powers of two, so that few executables serve all; what
//! fills a prompt up is never seen, because its keys stand behind the last position and are
//! overwritten one by one. Invariant: no byte of a cache behind the present position reaches a
//! logit.

use super::{DecodeError, Decoder};
use crate::pretrained::Pretrained;
use overdrive_ir::{Backend, Buffer, DType, Mode, Session, State, Tensor, Tuning};
use overdrive_models::Span;
use std::collections::BTreeMap;

/// The shortest prompt that an executable is made for.
const SHORTEST: usize = 16;

/// A decoder with its caches on a device.
pub struct CachedDecoder<'a> {
    backend: &'a dyn Backend,
    mode: Mode,
    model: &'a Pretrained,
    format: DType,
    state: State,
    capacity: usize,
    compiled: BTreeMap<Span, Compiled>,
    /// Tokens whose keys are in the caches.
    seen: usize,
}

/// An executable with its buffers: `x`, `position` and `y`.
struct Compiled {
    session: Box<dyn Session>,
    inputs: [Buffer; 2],
    outputs: [Buffer; 1],
}

/// The power of two that so many tokens are rounded up to.
fn bucket(tokens: usize, most: usize) -> usize {
    tokens.next_power_of_two().clamp(SHORTEST.min(most), most)
}

impl<'a> CachedDecoder<'a> {
    /// A decoder in f32 with room for `tokens`, prompt and answer together. The weights move to the
    /// device.
    ///
    /// # Errors
    /// When the model is no decoder or has a shorter context, or when the device refuses.
    pub fn new(
        target: (&'a dyn Backend, Mode),
        model: &'a Pretrained,
        tokens: usize,
    ) -> Result<Self, DecodeError> {
        Self::in_format(target, model, tokens, DType::F32)
    }

    /// The same with weights, keys, values and operands of contractions in `format`: see
    /// [`Pretrained::unloaded_in`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_format(
        (backend, mode): (&'a dyn Backend, Mode),
        model: &'a Pretrained,
        tokens: usize,
        format: DType,
    ) -> Result<Self, DecodeError> {
        let context = model.architecture.context();
        let capacity = bucket(tokens.min(context), context);
        // Before the length is judged, so that a model that is no decoder is told so.
        let graph = model.graph_in(Span::Step { capacity }, format)?;
        if tokens > context {
            return Err(DecodeError::Full { capacity: context, found: tokens });
        }
        let state = State::initial(&graph, backend)?;
        let compiled = BTreeMap::new();
        Ok(Self { backend, mode, model, format, state, capacity, compiled, seen: 0 })
    }

    fn compile(&mut self, span: Span) -> Result<(), DecodeError> {
        if self.compiled.contains_key(&span) {
            return Ok(());
        }
        let (backend, graph) = (self.backend, self.model.unloaded_in(span, self.format)?);
        let session = backend.compile(&graph, self.mode, &Tuning::default())?.session()?;
        let [x, position] = [0, 1].map(|i| backend.output(graph.ty(graph.inputs()[i].value)));
        let y = backend.output(graph.ty(graph.outputs()[0].value))?;
        self.compiled.insert(span, Compiled { session, inputs: [x?, position?], outputs: [y] });
        Ok(())
    }

    fn call(&mut self, span: Span, ids: &[u32], position: usize) -> Result<Vec<f32>, DecodeError> {
        self.compile(span)?;
        let compiled = self.compiled.get_mut(&span).expect("it was compiled above");
        let ids: Vec<i128> = ids.iter().map(|&id| i128::from(id)).collect();
        let ids = Tensor::from_ints(DType::I32, [1, ids.len()], &ids);
        self.backend.write(&mut compiled.inputs[0], &ids)?;
        self.backend
            .write(&mut compiled.inputs[1], &Tensor::scalar(DType::I64, position as f64))?;
        compiled.session.run(self.state.with(&compiled.inputs, &mut compiled.outputs))?.wait()?;
        self.seen = position + 1;
        Ok(self.backend.download(&compiled.outputs[0])?.to_f32())
    }

    /// The span that begins a sequence with so many tokens.
    fn prefill(&self, prompt: usize) -> Result<Span, DecodeError> {
        match prompt {
            0 => Err(DecodeError::EmptyPrompt),
            found if found > self.capacity => {
                Err(DecodeError::Full { capacity: self.capacity, found })
            }
            _ => {
                Ok(Span::Prefill { tokens: bucket(prompt, self.capacity), capacity: self.capacity })
            }
        }
    }

    /// Room for tokens.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many executables were compiled so far.
    pub fn executables(&self) -> usize {
        self.compiled.len()
    }
}

impl Decoder for CachedDecoder<'_> {
    fn prepare(&mut self, prompt: usize) -> Result<(), DecodeError> {
        self.compile(self.prefill(prompt)?)?;
        self.compile(Span::Step { capacity: self.capacity })
    }

    fn begin(&mut self, prompt: &[u32]) -> Result<Vec<f32>, DecodeError> {
        let span = self.prefill(prompt.len())?;
        let Span::Prefill { tokens, .. } = span else { unreachable!("a prompt is a beginning") };
        let mut ids = prompt.to_vec();
        ids.resize(tokens, 0);
        self.call(span, &ids, prompt.len() - 1)
    }

    fn next(&mut self, token: u32) -> Result<Vec<f32>, DecodeError> {
        if self.seen == 0 {
            return Err(DecodeError::EmptyPrompt);
        }
        if self.seen >= self.capacity {
            return Err(DecodeError::Full { capacity: self.capacity, found: self.seen + 1 });
        }
        self.call(Span::Step { capacity: self.capacity }, &[token], self.seen)
    }
}
