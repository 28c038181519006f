//! Windows of a text that are read whole, for what other attention than the model's own costs.

use super::asked::{Generation, failure};
use crate::asked_attention::OtherAttention;
use crate::failure::Failure;
use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::decoding::{DecodeError, LanguageModel, negative_log_likelihood};
use overdrive::ir::{
    Backend, BackendError, Buffer, DType, Graph, GraphError, Session, State, Tensor, Tuning,
};
use overdrive::models::Span;
use overdrive::passes::{KEPT_TILES, VISIBLE_TILES, bind};
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;

/// Windows that were read whole.
pub(super) struct WholeWindows {
    /// Mean negative log-likelihood of a token, in nats, of each window.
    pub(super) means: Vec<f64>,
    /// Share of the tokens of each window that are the likeliest where they stand.
    pub(super) right: Vec<f64>,
    /// Percentage of tiles that attention skipped, of those where a query sees a key; none where it
    /// does not count them.
    pub(super) skipped_percent: Option<f64>,
}

pub(super) fn of_graph(error: GraphError) -> Failure {
    failure(DecodeError::Graph(error))
}

fn of_device(error: BackendError) -> Failure {
    failure(DecodeError::Backend(error))
}

/// The graph of a model that reads a window whole.
pub(super) fn graph_of(
    asked: &Generation<'_>,
    (model, window): (&Pretrained, usize),
) -> Result<Graph, Failure> {
    let graph = model.graph(Span::Whole, asked.format.unwrap_or(DType::F32)).map_err(of_graph)?;
    let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), window)];
    bind(&graph, &sizes.into()).map_err(of_graph)
}

/// A graph on the device, with what its calls need.
pub(super) struct Reader<'a> {
    backend: &'a dyn Backend,
    graph: Graph,
    session: Box<dyn Session>,
    state: State,
    /// Those of the last call, in the graph's order.
    pub(super) outputs: Vec<Buffer>,
}

impl<'a> Reader<'a> {
    /// A reader of `graph`. It shares the weights of another, if there is one.
    pub(super) fn new(
        asked: &'a Generation<'_>,
        graph: Graph,
        beside: Option<&Reader<'_>>,
    ) -> Result<Self, Failure> {
        let backend = asked.opened.backend.as_ref();
        let compiled = backend.compile(&graph, asked.mode, &Tuning::default());
        let session = compiled.and_then(|compiled| compiled.session()).map_err(of_device)?;
        let state = match beside {
            Some(other) => other.state.beside(&graph, backend),
            None => State::initial(&graph, backend).map(|state| state.share(&graph)),
        };
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let outputs = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>();
        let (state, outputs) = (state.map_err(of_device)?, outputs.map_err(of_device)?);
        Ok(Self { backend, graph, session, state, outputs })
    }

    /// A window as its input.
    pub(super) fn input(&self, tokens: &[u32]) -> Result<Buffer, Failure> {
        let ids: Vec<i128> = tokens.iter().map(|&id| id.into()).collect();
        let ids = Tensor::from_ints(DType::I32, [1, tokens.len()], &ids);
        self.backend.upload(&ids).map_err(of_device)
    }

    /// One call to its end; the seconds that it took.
    pub(super) fn call(&mut self, inputs: &[Buffer]) -> Result<f64, Failure> {
        let clock = SystemClock::new();
        let start = clock.now_ns();
        let pending = self.session.run(self.state.with(inputs, &mut self.outputs));
        pending.and_then(|pending| pending.wait()).map_err(of_device)?;
        Ok((clock.now_ns() - start) as f64 / 1e9)
    }

    /// Outputs of the last call by name.
    pub(super) fn found(&self) -> impl Iterator<Item = Result<(&str, Vec<f32>), Failure>> {
        self.graph.outputs().iter().zip(&self.outputs).map(|(port, output)| {
            let values = self.backend.download(output).map_err(of_device)?.to_f32();
            Ok((port.name.as_str(), values))
        })
    }

    /// Reads windows of one length.
    pub(super) fn read(
        &mut self,
        windows: &[Vec<u32>],
        stop: &Stop,
    ) -> Result<WholeWindows, Failure> {
        let (mut means, mut right) = (Vec::with_capacity(windows.len()), Vec::new());
        let (mut kept, mut visible) = (0.0, 0.0);
        let _interruptible = stop.heed();
        for tokens in windows {
            if stop.is_requested() {
                let read = format!("{} of {} windows were read", means.len(), windows.len());
                return Err(Failure::interrupted(read));
            }
            let inputs = [self.input(tokens)?];
            self.call(&inputs)?;
            for found in self.found() {
                let (name, values) = found?;
                if name.starts_with(KEPT_TILES) {
                    kept += f64::from(values[0]);
                } else if name.starts_with(VISIBLE_TILES) {
                    visible += f64::from(values[0]);
                } else {
                    let (mean, share) = judged(&values, tokens)?;
                    means.push(mean);
                    right.push(share);
                }
            }
        }
        let skipped_percent = (visible > 0.0).then(|| 100.0 * (1.0 - kept / visible));
        Ok(WholeWindows { means, right, skipped_percent })
    }
}

/// Mean negative log-likelihood of the tokens of a window behind the first, by the logits before
/// each. Beside it is the share of them that are the likeliest.
fn judged(logits: &[f32], tokens: &[u32]) -> Result<(f64, f64), Failure> {
    let rows = logits.chunks(logits.len() / tokens.len()).zip(&tokens[1..]);
    let (mut sum, mut right) = (0.0, 0);
    for (at, (logits, &next)) in rows.enumerate() {
        let found = negative_log_likelihood(logits, next);
        sum += found.ok_or_else(|| failure(DecodeError::NoNumber(at)))?;
        right += usize::from(logits.iter().all(|&logit| logit <= logits[next as usize]));
    }
    let count = (tokens.len() - 1) as f64;
    Ok((sum / count, right as f64 / count))
}

/// Reads windows of one length with this attention, or with the model's own.
pub(super) fn read(
    asked: &Generation<'_>,
    (model, windows): (&Pretrained, &[Vec<u32>]),
    other: Option<&OtherAttention>,
    stop: &Stop,
) -> Result<WholeWindows, Failure> {
    let graph = graph_of(asked, (model, windows[0].len()))?;
    let graph = match other {
        Some(other) => other.counted(&graph)?,
        None => graph,
    };
    Reader::new(asked, graph, None)?.read(windows, stop)
}
