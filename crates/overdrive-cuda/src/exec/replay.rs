//! Calls captured once as CUDA graphs and replayed.
//!
//! A graph holds the addresses that it was captured with. So there is one for each set of buffers
//! that a caller passes, up to a few. Callers reuse their buffers, and comparing addresses costs
//! less than anything else. When there are too many sets, the least recently used graph is given
//! the new addresses. That costs less than another graph (decision 0004). Invariant: a graph is
//! replayed only on exactly the addresses that it was captured with.

use super::enqueuer::Enqueuer;
use crate::launch::Addresses;
use crate::{Device, Error};
use cudarc::driver::{CudaGraph, result, sys};
use overdrive_ir::BackendError;
use std::sync::Arc;
use std::time::Instant;

/// Graphs kept at the same time; the one that waited longest is given new addresses then.
const KEPT: usize = 8;

/// Other threads may do anything in the meantime.
const MODE: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Calls of each way when both are compared.
const TRIALS: usize = 5;

/// Part of the launched time that a replay must save, to be worth its memory.
const WORTH: f64 = 0.01;

/// A captured call or several.
pub(super) struct Captured {
    graph: CudaGraph,
    /// Device memory that went with it, as far as the driver tells.
    bytes: u64,
}

// SAFETY: a graph belongs to one session, which runs on one thread at a time; the driver does
// not care which.
unsafe impl Send for Captured {}

impl Captured {
    /// Captures what `enqueue` enqueues.
    pub(super) fn new(
        device: &Arc<Device>,
        enqueue: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<Self, BackendError> {
        let failed = |e: Error| e.during("capturing a graph");
        let free = || device.context().mem_get_info().map(|(free, _)| free as u64);
        let before = free().map_err(|e| failed(e.into()))?;
        let stream = device.stream();
        stream.begin_capture(MODE).map_err(|e| failed(e.into()))?;
        let enqueued = enqueue();
        // The capture ends in any case, or the stream would be of no further use.
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        let graph =
            ended.map_err(|e| failed(e.into()))?.expect("a capture that was begun has a graph");
        graph.upload().map_err(|e| failed(e.into()))?;
        let bytes = before.saturating_sub(free().map_err(|e| failed(e.into()))?);
        Ok(Self { graph, bytes })
    }

    /// Gives the graph the parameters of the same calls on other addresses; false where the driver
    /// finds more than parameters changed.
    fn update(
        &mut self,
        device: &Arc<Device>,
        enqueue: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<bool, BackendError> {
        let failed = |e: Error| e.during("updating a graph");
        let stream = device.stream();
        stream.begin_capture(MODE).map_err(|e| failed(e.into()))?;
        let enqueued = enqueue();
        // SAFETY: the stream is being captured; the graph is ours, and is destroyed once the other
        // one knows it. By the driver's manual, launches of the other graph that are under way keep
        // their old parameters.
        unsafe {
            let ended = result::stream::end_capture(stream.cu_stream());
            enqueued?;
            let graph = ended.map_err(|e| failed(e.into()))?;
            let mut why: sys::CUgraphExecUpdateResultInfo = std::mem::zeroed();
            let updated =
                sys::cuGraphExecUpdate_v2(self.graph.cu_graph_exec(), graph, &raw mut why);
            result::graph::destroy(graph).map_err(|e| failed(e.into()))?;
            Ok(updated.result().is_ok())
        }
    }

    /// Enqueues it.
    pub(super) fn launch(&self) -> Result<(), BackendError> {
        self.graph.launch().map_err(|e| Error::from(e).during("replaying a graph"))
    }
}

/// The graphs of an enqueuer.
#[derive(Default)]
pub(super) struct Replay {
    graphs: Vec<(Addresses, Captured)>,
    was_compared: bool,
}

impl Replay {
    /// Device memory of all graphs.
    pub(super) fn bytes(&self) -> u64 {
        self.graphs.iter().map(|(_, captured)| captured.bytes).sum()
    }

    /// Enqueues one call; a reason, once the call was made without a graph because none pays.
    pub(super) fn call(&mut self, enqueuer: &mut Enqueuer) -> Result<Option<String>, BackendError> {
        if let Some((_, captured)) = self.graphs.iter().find(|(at, _)| *at == enqueuer.addresses) {
            captured.launch()?;
            return Ok(None);
        }
        let device = Arc::clone(&enqueuer.device);
        if self.graphs.len() == KEPT {
            let (_, mut oldest) = self.graphs.remove(0);
            if oldest.update(&device, || enqueuer.enqueue(|_| Ok(())))? {
                oldest.launch()?;
                self.graphs.push((enqueuer.addresses.clone(), oldest));
                return Ok(None);
            }
        }
        let captured = Captured::new(&device, || enqueuer.enqueue(|_| Ok(())))?;
        if !std::mem::replace(&mut self.was_compared, true)
            && enqueuer.plan.updates.is_empty()
            && let Some(reason) = not_worth(&captured, enqueuer)?
        {
            return Ok(Some(reason));
        }
        captured.launch()?;
        self.graphs.push((enqueuer.addresses.clone(), captured));
        Ok(None)
    }
}

/// Times both ways from the host, alternating; why the graph does not pay, if it does not. A graph
/// saves little more than launching costs the host. So one call tells where this is nothing beside
/// the work, as in calls of seconds.
fn not_worth(captured: &Captured, enqueuer: &mut Enqueuer) -> Result<Option<String>, BackendError> {
    let device = Arc::clone(&enqueuer.device);
    let wait =
        || device.stream().synchronize().map_err(|e| Error::from(e).during("timing a graph"));
    let [mut launched, mut replayed] = [f64::INFINITY; 2];
    for _ in 0..TRIALS {
        wait()?;
        let start = Instant::now();
        enqueuer.enqueue(|_| Ok(()))?;
        let enqueued = start.elapsed().as_secs_f64();
        wait()?;
        let whole = start.elapsed().as_secs_f64();
        if enqueued < WORTH * whole {
            let [enqueued, whole] = [enqueued, whole].map(|seconds| seconds * 1e6);
            return Ok(Some(format!(
                "launching takes the host {enqueued:.1} us of a call of {whole:.1} us"
            )));
        }
        launched = launched.min(whole);
        let start = Instant::now();
        captured.launch()?;
        wait()?;
        replayed = replayed.min(start.elapsed().as_secs_f64());
    }
    let pays = replayed < (1.0 - WORTH) * launched;
    Ok((!pays).then(|| {
        format!(
            "a replay takes {:.1} us from the host, launching {:.1} us",
            replayed * 1e6,
            launched * 1e6
        )
    }))
}
