//! Decoding with a model of fixed context and no cache: all of the window is computed anew for
//! every token.
//!
//! For models whose graph takes ids `[batch, T]` and gives all logits `[batch, T, V]`, such as
//! those that train here. A sequence longer than the window loses its beginning. Invariant: padding
//! of a short sequence comes after it, where a causal model does not look.

use super::{DecodeError, Decoder};
use overdrive_ir::{Backend, Buffer, Dim, Graph, Mode, Session, State, Tensor, TensorType, Tuning};

/// A decoder of one graph on a device.
pub struct WindowDecoder<'a> {
    backend: &'a dyn Backend,
    session: Box<dyn Session>,
    state: State,
    ids: Buffer,
    logits: Buffer,
    /// The whole sequence so far.
    sequence: Vec<u32>,
}

impl<'a> WindowDecoder<'a> {
    /// A decoder of a graph that is bound to a batch of 1.
    ///
    /// # Errors
    /// When the graph does not take ids and give logits, or when the device refuses.
    pub fn new(
        (backend, mode): (&'a dyn Backend, Mode),
        graph: &Graph,
    ) -> Result<Self, DecodeError> {
        let (x, y) = text_ports(graph)?;
        let session = backend.compile(graph, mode, &Tuning::default())?.session()?;
        let (ids, logits) = (backend.output(&x)?, backend.output(&y)?);
        let state = State::initial(graph, backend)?;
        Ok(Self { backend, session, state, ids, logits, sequence: vec![] })
    }

    fn window(&self) -> usize {
        self.ids.ty.sizes()[1]
    }

    fn last_logits(&mut self) -> Result<Vec<f32>, DecodeError> {
        let window = self.window();
        let seen = &self.sequence[self.sequence.len().saturating_sub(window)..];
        let mut ids: Vec<i128> = seen.iter().map(|&id| i128::from(id)).collect();
        let last = ids.len() - 1;
        ids.resize(window, 0);
        let ids = Tensor::from_ints(self.ids.ty.dtype, self.ids.ty.shape.clone(), &ids);
        self.backend.write(&mut self.ids, &ids)?;
        let inputs = std::slice::from_ref(&self.ids);
        let outputs = std::slice::from_mut(&mut self.logits);
        self.session.run(self.state.with(inputs, outputs))?.wait()?;
        let logits = self.backend.download(&self.logits)?.to_f32();
        let width = logits.len() / window;
        Ok(logits[last * width..][..width].to_vec())
    }
}

/// Types of the one input, ids `[1, T]`, and the one output, logits `[1, T, V]`.
fn text_ports(graph: &Graph) -> Result<(TensorType, TensorType), DecodeError> {
    let refused = |found: String| {
        let expected = "expected a model of text: integer ids [1, T] to logits [1, T, V]";
        Err(DecodeError::NotText(format!(
            "`{}` does not generate: {expected}, found {found}",
            graph.name()
        )))
    };
    let ([input], [output]) = (graph.inputs(), graph.outputs()) else {
        return refused(format!(
            "{} inputs and {} outputs",
            graph.inputs().len(),
            graph.outputs().len()
        ));
    };
    let (x, y) = (graph.ty(input.value), graph.ty(output.value));
    let rows = |ty: &TensorType| ty.shape.0.get(..2).map(<[Dim]>::to_vec);
    let is_text = x.dtype.is_int()
        && x.rank() == 2
        && y.dtype.is_float()
        && y.rank() == 3
        && rows(x) == rows(y);
    match is_text && x.shape[0] == Dim::Size(1) {
        true => Ok((x.clone(), y.clone())),
        false => refused(format!("{x} to {y}")),
    }
}

impl Decoder for WindowDecoder<'_> {
    fn prepare(&mut self, prompt: usize, _likeliest: bool) -> Result<(), DecodeError> {
        if prompt == 0 { Err(DecodeError::EmptyPrompt) } else { Ok(()) }
    }

    fn begin(&mut self, prompt: &[u32]) -> Result<Vec<f32>, DecodeError> {
        self.prepare(prompt.len(), false)?;
        self.sequence = prompt.to_vec();
        self.last_logits()
    }

    fn next(&mut self, token: u32) -> Result<Vec<f32>, DecodeError> {
        if self.sequence.is_empty() {
            return Err(DecodeError::EmptyPrompt);
        }
        self.sequence.push(token);
        self.last_logits()
    }
}
