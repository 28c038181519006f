//! The token that a session times: which one it is, behind how long a text, of how many sequences;
//! and what it should be.

use crate::Workload;
use crate::pretrained::Pretrained;
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::Oracle;
use overdrive_bench::work::Items;
use overdrive_ir::{Backend, Builder, DType, Graph, GraphError, Mode, State, Tensor, Tuning};
use overdrive_models::Caches;
use std::collections::BTreeMap;

/// The timed token.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// That after a text, all of whose tokens are computed.
    First,
    /// That after one more token, with the keys and values of the others in a cache.
    Next,
}

/// The place of a token.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) part: Part,
    /// The length of each text. A next token has one more before it.
    pub(super) tokens: usize,
    pub(super) sequences: usize,
    /// Tokens that a cache has room for.
    room: usize,
}

impl Behind {
    /// Tokens after the text that a cache has room for: so many calls follow one another.
    pub(super) const STEPS: usize = 64;

    /// The place of a part in a model that reads so many tokens.
    pub(super) fn new(part: Part, [tokens, sequences]: [usize; 2], context: usize) -> Self {
        let steps = if part == Part::Next { Self::STEPS } else { 0 };
        Self { part, tokens, sequences, room: context.min(tokens + steps) }
    }

    /// The name of the workload; `peers/pytorch.py` knows it by its end.
    pub(super) fn name(self, model: &str) -> String {
        match self.part {
            Part::First => format!("{model}, first token"),
            Part::Next => format!("{model}, next token"),
        }
    }

    /// Tokens that the logits depend on.
    fn seen(self) -> usize {
        match self.part {
            Part::First => self.tokens,
            Part::Next => self.tokens + 1,
        }
    }

    /// Caches with room for the calls of a sample.
    pub(super) fn caches(self) -> Caches {
        Caches::of(self.sequences, self.room)
    }

    /// The text of each sequence, which begins elsewhere in each. A place in it is a token's.
    pub(super) fn texts(self, text: &[u32]) -> Vec<Vec<u32>> {
        let of = |sequence: usize| {
            text.iter().cycle().skip(sequence % text.len()).take(self.seen()).copied().collect()
        };
        (0..self.sequences).map(of).collect()
    }

    pub(super) fn items(self) -> Items {
        Items { per_call: self.sequences as u64, name: "decoded tokens".to_owned() }
    }

    /// The same function of all tokens at once, for whoever has the model otherwise: x `[S, T]` to
    /// the last logits `[S, V]`.
    pub(super) fn workload(
        self,
        (of, model): (&Workload, &Pretrained),
        text: &[u32],
    ) -> Result<Workload, Failure> {
        let ill_formed = |error: GraphError| Failure::failed(error.to_string());
        let graph = whole(model, [self.sequences, self.seen()])
            .and_then(|graph| last_alone(&graph))
            .map_err(ill_formed)?;
        let x = matrix(&self.texts(text));
        let given = BTreeMap::from([(graph.inputs()[0].name.clone(), x)]);
        let dimensions = [("batch", self.sequences), ("tokens", self.tokens)];
        let (config, items) = (of.config.clone(), Some(self.items()));
        let workload = Workload::new(&self.name(&of.key.name), dimensions, graph);
        Ok(Workload { given, config, items, ..workload })
    }

    /// The logits, by all tokens at once in f32 on the device, a sequence after another.
    pub(super) fn oracle<'a>(
        self,
        (backend, model): (&'a dyn Backend, &'a Pretrained),
        texts: &'a [Vec<u32>],
    ) -> Oracle<'a> {
        let x = matrix(texts);
        let name = "the whole sequence at once";
        Oracle::new(
            name,
            move |_| vec![x.clone()],
            move |_| {
                let ill_formed = |error: GraphError| Failure::failed(error.to_string());
                let graph = whole(model, [1, self.seen()])
                    .and_then(|graph| last_alone(&graph))
                    .map_err(ill_formed)?;
                let executable = backend.compile(&graph, Mode::Compile, &Tuning::default())?;
                let mut session = executable.session()?;
                let mut state = State::initial(&graph, backend)?;
                let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value))?];
                let mut logits: Vec<f64> = Vec::new();
                for text in texts {
                    let x = backend.upload(&matrix(std::slice::from_ref(text)))?;
                    session.run(state.with(&[x], &mut outputs))?.wait()?;
                    logits.extend(backend.download(&outputs[0])?.to_f64());
                }
                let shape = [texts.len(), logits.len() / texts.len().max(1)];
                Ok(vec![Tensor::from_f64(DType::F32, shape, &logits)])
            },
        )
    }
}

/// Tokens of texts as long as one another, i32 `[S, T]`.
fn matrix(texts: &[Vec<u32>]) -> Tensor {
    let ids: Vec<i128> = texts.iter().flatten().map(|&id| id.into()).collect();
    Tensor::from_ints(DType::I32, [texts.len(), texts.first().map_or(0, Vec::len)], &ids)
}

/// The model of whole sequences at these sizes, `[batch, tokens]`.
fn whole(model: &Pretrained, [batch, tokens]: [usize; 2]) -> Result<Graph, GraphError> {
    let sizes = [("batch".to_owned(), batch), ("tokens".to_owned(), tokens)].into();
    model.template()?.graph_of(&sizes)
}

/// The same with the logits `[batch, V]` of the last tokens alone.
fn last_alone(whole: &Graph) -> Result<Graph, GraphError> {
    let b = Builder::new(whole.name());
    let map = b.append(whole)?;
    let port = &whole.outputs()[0];
    let logits = map[port.value.0 as usize];
    let [batch, tokens, vocabulary] = [0, 1, 2].map(|axis| logits.size(axis));
    let last = logits.slice_axis(1, tokens - 1, tokens).reshape([batch, vocabulary]);
    b.output(&port.name, last);
    b.finish()
}
