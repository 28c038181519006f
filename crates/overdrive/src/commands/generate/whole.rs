//! Windows of a text that are read whole, for what other attention than the model's own costs.

use super::asked::{Generation, failure};
use crate::asked_attention::OtherAttention;
use crate::failure::Failure;
use overdrive::decoding::{DecodeError, LanguageModel, negative_log_likelihood};
use overdrive::ir::{Buffer, DType, GraphError, State, Tensor, Tuning};
use overdrive::models::Span;
use overdrive::passes::{KEPT_TILES, VISIBLE_TILES, bind};
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;

/// Windows that were read whole.
pub(super) struct WholeWindows {
    /// Mean negative log-likelihood of a token, in nats, of each window.
    pub(super) means: Vec<f64>,
    /// Percentage of tiles that attention skipped, of those where a query sees a key; none where it
    /// does not count them.
    pub(super) skipped_percent: Option<f64>,
}

/// Reads windows of one length with this attention, or with the model's own.
pub(super) fn read(
    asked: &Generation<'_>,
    (model, windows): (&Pretrained, &[Vec<u32>]),
    other: Option<&OtherAttention>,
    stop: &Stop,
) -> Result<WholeWindows, Failure> {
    let of_graph = |error: GraphError| failure(DecodeError::Graph(error));
    let of_device = |error| failure(DecodeError::Backend(error));
    let (backend, window) = (asked.opened.backend.as_ref(), windows[0].len());
    let graph = model.graph(Span::Whole, asked.format.unwrap_or(DType::F32)).map_err(of_graph)?;
    let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), window)];
    let graph = bind(&graph, &sizes.into()).map_err(of_graph)?;
    let graph = match other {
        Some(other) => other.counted(&graph)?,
        None => graph,
    };
    let compiled = backend.compile(&graph, asked.mode, &Tuning::default()).map_err(of_device)?;
    let mut session = compiled.session().map_err(of_device)?;
    let mut state = State::initial(&graph, backend).map_err(of_device)?;
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs: Vec<Buffer> =
        types.map(|ty| backend.output(ty)).collect::<Result<_, _>>().map_err(of_device)?;
    let (mut means, mut kept, mut visible) = (Vec::with_capacity(windows.len()), 0.0, 0.0);
    let _interruptible = stop.heed();
    for tokens in windows {
        if stop.is_requested() {
            let read = format!("{} of {} windows were read", means.len(), windows.len());
            return Err(Failure::interrupted(read));
        }
        let ids: Vec<i128> = tokens.iter().map(|&id| id.into()).collect();
        let ids = Tensor::from_ints(DType::I32, [1, window], &ids);
        let inputs = [backend.upload(&ids).map_err(of_device)?];
        let pending = session.run(state.with(&inputs, &mut outputs)).map_err(of_device)?;
        pending.wait().map_err(of_device)?;
        for (port, output) in graph.outputs().iter().zip(&outputs) {
            let values = backend.download(output).map_err(of_device)?.to_f32();
            if port.name.starts_with(KEPT_TILES) {
                kept += f64::from(values[0]);
            } else if port.name.starts_with(VISIBLE_TILES) {
                visible += f64::from(values[0]);
            } else {
                let rows = values.chunks(values.len() / window).zip(&tokens[1..]);
                let found = rows.enumerate().map(|(at, (logits, &next))| {
                    let found = negative_log_likelihood(logits, next);
                    found.ok_or_else(|| failure(DecodeError::NoNumber(at)))
                });
                let sum = found.sum::<Result<f64, Failure>>()?;
                means.push(sum / (window - 1) as f64);
            }
        }
    }
    let skipped_percent = (visible > 0.0).then(|| 100.0 * (1.0 - kept / visible));
    Ok(WholeWindows { means, skipped_percent })
}
