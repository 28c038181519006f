//! Decoding with a cache of keys and values. There is an executable for each length of prompt, one
//! for every next token, and one for several next tokens in one run.
//!
//! All of them share one `State` by name: weights that no call changes, and caches that are updated
//! where they are. A decoder beside another reads the same weights. The caches may be of several
//! sequences, which begin and end as they like and take each step together. Lengths of prompts are
//! rounded up to powers of two, so that few executables serve all. The padding of a prompt is never
//! seen: its keys stand behind the last position and are overwritten one by one. With a pool of
//! pages, sequences take room as they grow, and a step copies keys and values into their order.
//! Invariant: no byte of a cache behind a sequence's present position, and none of another
//! sequence, reaches its logits.

mod several;

use super::likeliest::{Choosing, MOST, likeliest_alone, write_integers};
use super::pages::PagePool;
use super::{DecodeError, Decoder, LanguageModel};
use overdrive_ir::{Backend, Buffer, DType, Graph, Mode, Session, State, Tensor, Tuning};
use overdrive_models::{CacheCodes, Caches, Pages, Span};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// The shortest prompt that an executable is made for.
const SHORTEST: usize = 16;

/// A decoder with its caches on a device.
pub struct CachedDecoder<'a> {
    backend: &'a dyn Backend,
    mode: Mode,
    model: &'a dyn LanguageModel,
    format: DType,
    state: State,
    caches: Caches,
    cache_bytes: u64,
    compiled: BTreeMap<(Span, Gives), CachedSession>,
    /// A step that chooses by itself, once it was wanted.
    choosing: Option<Choosing>,
    /// Tokens of each sequence whose keys are in the caches; none where it has not begun.
    seen: Vec<usize>,
    pool: Option<PagePool>,
}

/// The output of a session.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Gives {
    Logits,
    /// The likeliest token by each row of logits.
    Likeliest,
}

/// A session with its buffers: `x`, `position`, `pages` where there are any, or of a prompt among
/// several `sequence`; and `y`.
struct CachedSession {
    session: Box<dyn Session>,
    inputs: Vec<Buffer>,
    outputs: [Buffer; 1],
}

/// The pages of these caches, all free.
fn pool_of(caches: Caches) -> Option<PagePool> {
    caches.pages.map(|pages| PagePool::new(pages, caches.sequences))
}

/// Bytes of the caches that a graph declares.
fn bytes_of_caches(graph: &Graph) -> u64 {
    let kept = graph.states().iter().filter(|state| Caches::holds(&state.name));
    kept.map(|state| graph.ty(state.value).bytes() as u64).sum()
}

impl<'a> CachedDecoder<'a> {
    /// A decoder of one sequence in f32 with room for `tokens`, prompt and answer together. The
    /// weights move to the device.
    ///
    /// # Errors
    /// When the model is no decoder or has a shorter context, or when the device refuses.
    pub fn new(
        target: (&'a dyn Backend, Mode),
        model: &'a dyn LanguageModel,
        tokens: usize,
    ) -> Result<Self, DecodeError> {
        Self::in_format(target, model, Caches::of_one(tokens), DType::F32)
    }

    /// The same for several sequences, with room for as many tokens each as the caches are asked to
    /// hold. Weights, keys, values and operands of contractions are in `format`: see
    /// [`LanguageModel`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_format(
        (backend, mode): (&'a dyn Backend, Mode),
        model: &'a dyn LanguageModel,
        asked: Caches,
        format: DType,
    ) -> Result<Self, DecodeError> {
        let (context, tokens) = (model.context(), asked.capacity);
        let capacity = Self::room(tokens.min(context), context);
        let pages = asked.pages.map(|pages| {
            let size = NonZeroUsize::new(capacity).map_or(pages.size, |most| pages.size.min(most));
            // More could never be taken.
            let most = asked.sequences.saturating_mul(capacity.div_ceil(size.get()));
            Pages { size, count: pages.count.min(most) }
        });
        let caches = Caches { capacity, pages, ..asked };
        // Before the length is judged, so that a model that is no decoder is told so.
        let graph = model.graph(Span::Step { caches }, format)?;
        if tokens > context {
            return Err(DecodeError::Full { capacity: context, found: tokens });
        }
        let cache_bytes = bytes_of_caches(&graph);
        let state = State::initial(&graph, backend)?.share(&graph);
        let (compiled, seen) = (BTreeMap::new(), vec![0; caches.sequences]);
        let pool = pool_of(caches);
        Ok(Self {
            backend,
            mode,
            model,
            format,
            state,
            caches,
            cache_bytes,
            compiled,
            choosing: None,
            seen,
            pool,
        })
    }

    /// The capacity of caches for so many tokens, of a model that reads `most`: the next power of
    /// two.
    pub fn room(tokens: usize, most: usize) -> usize {
        tokens.next_power_of_two().clamp(SHORTEST.min(most), most)
    }

    /// A decoder of the same weights, which the device holds once for both, with empty caches of
    /// these codes.
    ///
    /// # Errors
    /// When the device has no room for the caches.
    pub fn beside(&self, mode: Mode, codes: Option<CacheCodes>) -> Result<Self, DecodeError> {
        let caches = Caches { codes, ..self.caches };
        let graph = self.model.unloaded(Span::Step { caches }, self.format)?;
        let cache_bytes = bytes_of_caches(&graph);
        let state = self.state.beside(&graph, self.backend)?;
        let (compiled, seen) = (BTreeMap::new(), vec![0; caches.sequences]);
        let pool = pool_of(caches);
        Ok(Self { mode, state, caches, cache_bytes, compiled, choosing: None, seen, pool, ..*self })
    }

    fn compile(&mut self, (span, gives): (Span, Gives)) -> Result<(), DecodeError> {
        if self.compiled.contains_key(&(span, gives)) {
            return Ok(());
        }
        let (backend, graph) = (self.backend, self.model.unloaded(span, self.format)?);
        let graph = match gives {
            Gives::Logits => graph,
            Gives::Likeliest => likeliest_alone(&graph)?,
        };
        let session = backend.compile(&graph, self.mode, &Tuning::default())?.session()?;
        let inputs = graph.inputs().iter().map(|port| backend.output(graph.ty(port.value)));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let y = backend.output(graph.ty(graph.outputs()[0].value))?;
        self.compiled.insert((span, gives), CachedSession { session, inputs, outputs: [y] });
        Ok(())
    }

    /// The logits of a call on these integers, an input each.
    fn call(&mut self, span: Span, given: &[&[usize]]) -> Result<Vec<f32>, DecodeError> {
        Ok(self.run((span, Gives::Logits), given)?.to_f32())
    }

    fn run(&mut self, what: (Span, Gives), given: &[&[usize]]) -> Result<Tensor, DecodeError> {
        self.compile(what)?;
        let CachedSession { session, inputs, outputs } =
            self.compiled.get_mut(&what).expect("it was compiled above");
        write_integers(self.backend, inputs, given)?;
        session.run(self.state.with(inputs, outputs))?.wait()?;
        Ok(self.backend.download(&outputs[0])?)
    }

    /// The span that begins a sequence with so many tokens.
    fn prefill(&self, prompt: usize) -> Result<Span, DecodeError> {
        let (caches, capacity) = (self.caches, self.caches.capacity);
        match prompt {
            0 => Err(DecodeError::EmptyPrompt),
            found if found > capacity => Err(DecodeError::Full { capacity, found }),
            _ => Ok(Span::Prefill { tokens: Self::room(prompt, capacity), caches }),
        }
    }

    /// Logits `[V]` after a prompt, with which one of the sequences begins anew; the others stay.
    ///
    /// # Errors
    /// When the prompt is empty or too long, or when the device refuses. When too few pages are
    /// free for it and one token more: the sequence has then left.
    pub fn join(&mut self, sequence: usize, prompt: &[u32]) -> Result<Vec<f32>, DecodeError> {
        let span = self.prefill(prompt.len())?;
        self.leave(sequence);
        let Span::Prefill { tokens, .. } = span else { unreachable!("a prompt is a beginning") };
        let mut ids: Vec<usize> = prompt.iter().map(|&id| id as usize).collect();
        // Padding is not seen. Means over tiles of queries and keys, which a gate takes, are those
        // of the text so, or near it.
        let last = ids.last().copied().unwrap_or(0);
        ids.resize(tokens, last);
        let place = match &mut self.pool {
            None => vec![sequence],
            Some(pool) => {
                pool.grow(sequence, (prompt.len() + 1).min(self.caches.capacity))?;
                pool.row(sequence, pool.of(tokens)).collect()
            }
        };
        let logits = self.call(span, &[&ids, &[prompt.len() - 1], &place])?;
        self.seen[sequence] = prompt.len();
        Ok(logits)
    }

    /// Ends a sequence; its pages are free again.
    pub fn leave(&mut self, sequence: usize) {
        self.seen[sequence] = 0;
        if let Some(pool) = &mut self.pool {
            pool.leave(sequence);
        }
    }

    /// Logits `[S, V]` after one more token of each sequence that has one; those of others mean
    /// nothing.
    ///
    /// # Errors
    /// When a sequence has not begun, is full or finds no page free, or when the device refuses.
    /// No sequence has then seen its token.
    pub fn step(&mut self, tokens: &[Option<u32>]) -> Result<Vec<f32>, DecodeError> {
        let given = self.begin_steps(tokens, 1)?;
        let logits =
            self.call(Span::Step { caches: self.caches }, &given.each_ref().map(|x| &x[..]))?;
        self.end_steps(tokens, 1);
        Ok(logits)
    }

    /// The likeliest tokens `[N, S]` after one more token of each sequence that has one, of so many
    /// steps; those of others mean nothing. A token is `None` where logits are no numbers. The last
    /// one was not read yet.
    ///
    /// # Errors
    /// As [`Self::step`], whichever of the steps it is.
    pub fn likeliest_of(
        &mut self,
        tokens: &[Option<u32>],
        steps: usize,
    ) -> Result<Vec<Option<u32>>, DecodeError> {
        let steps = steps.clamp(1, MOST);
        let given = self.begin_steps(tokens, steps)?;
        self.compile_choosing()?;
        let choosing = self.choosing.as_mut().expect("it was compiled above");
        let device = (self.backend, &mut self.state);
        let made = choosing.call(device, &given.each_ref().map(|x| &x[..]), steps)?;
        self.end_steps(tokens, steps);
        Ok(made)
    }

    fn compile_choosing(&mut self) -> Result<(), DecodeError> {
        if self.choosing.is_none() {
            let caches = self.caches;
            let step = self.model.unloaded(Span::Step { caches }, self.format)?;
            let choosing = Choosing::new((self.backend, self.mode), &step, caches.capacity)?;
            self.choosing = Some(choosing);
        }
        Ok(())
    }

    /// Room for so many more tokens of each sequence that has one; the inputs of the first step.
    fn begin_steps(
        &mut self,
        tokens: &[Option<u32>],
        steps: usize,
    ) -> Result<[Vec<usize>; 3], DecodeError> {
        let Caches { sequences, capacity, .. } = self.caches;
        for (sequence, _) in (0..sequences).zip(tokens).filter(|(_, token)| token.is_some()) {
            match self.seen[sequence] {
                0 => return Err(DecodeError::EmptyPrompt),
                seen if seen + steps > capacity => {
                    return Err(DecodeError::Full { capacity, found: seen + steps });
                }
                seen => {
                    self.pool.as_mut().map_or(Ok(()), |pool| pool.grow(sequence, seen + steps))?;
                }
            }
        }
        let ids: Vec<usize> = tokens.iter().map(|token| token.unwrap_or(0) as usize).collect();
        let [positions, table] = self.places();
        Ok([ids, positions, table])
    }

    /// The positions of the next tokens, and the table of pages.
    fn places(&self) -> [Vec<usize>; 2] {
        let Caches { sequences, capacity, .. } = self.caches;
        // A paused sequence writes to the place of its next token, or to nobody's page: nobody
        // looks there before.
        let positions: Vec<usize> = self.seen.iter().map(|&seen| seen.min(capacity - 1)).collect();
        let table = |pool: &PagePool| -> Vec<usize> {
            let each = pool.of(capacity);
            (0..sequences).flat_map(|sequence| pool.row(sequence, each)).collect()
        };
        [positions, self.pool.as_ref().map_or(vec![], table)]
    }

    fn end_steps(&mut self, tokens: &[Option<u32>], steps: usize) {
        for (seen, _) in self.seen.iter_mut().zip(tokens).filter(|(_, token)| token.is_some()) {
            *seen += steps;
        }
    }

    /// Errs where a sequence of so many tokens takes more pages than there are.
    ///
    /// # Errors
    /// [`DecodeError::Pages`], which says how many it needs.
    pub fn holds(&self, tokens: usize) -> Result<(), DecodeError> {
        let most = tokens.min(self.caches.capacity);
        self.pool.as_ref().map_or(Ok(()), |pool| pool.holds(most))
    }

    /// Its caches, with room for tokens as it was rounded.
    pub fn caches(&self) -> Caches {
        self.caches
    }

    /// Sequences that are decoded together.
    pub fn sequences(&self) -> usize {
        self.caches.sequences
    }

    /// Bytes of the keys and values of all sequences on this device, scales of codes included.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// Room for tokens of each sequence.
    pub fn capacity(&self) -> usize {
        self.caches.capacity
    }
}

impl Decoder for CachedDecoder<'_> {
    fn prepare(&mut self, prompt: usize, likeliest: bool) -> Result<(), DecodeError> {
        self.compile((self.prefill(prompt)?, Gives::Logits))?;
        match likeliest {
            true => self.compile_choosing(),
            false => self.compile((Span::Step { caches: self.caches }, Gives::Logits)),
        }
    }

    fn begin(&mut self, prompt: &[u32]) -> Result<Vec<f32>, DecodeError> {
        self.join(0, prompt)
    }

    fn next(&mut self, token: u32) -> Result<Vec<f32>, DecodeError> {
        self.step(&[Some(token)])
    }

    fn likeliest(
        &mut self,
        token: u32,
        index: usize,
        most: usize,
    ) -> Result<Vec<u32>, DecodeError> {
        let made = self.likeliest_of(&[Some(token)], most)?;
        let strange = made.iter().position(Option::is_none).map(|at| index + at);
        strange
            .map_or(Ok(made.into_iter().flatten().collect()), |at| Err(DecodeError::NoNumber(at)))
    }
}
