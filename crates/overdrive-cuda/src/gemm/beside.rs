//! Products of one left operand in parallel: each is launched on a stream of its own.
//!
//! Query, key and value of a model in f32 are three products of cuBLASLt. Each has a quarter of the
//! tiles that fill a large GPU. Events fork the streams and join them, which a capture turns into
//! branches of its graph. Invariant: all of them begin after the work that was enqueued before, and
//! later work waits for all.

use super::scratch::scratch_bytes;
use crate::Error;
use crate::entry::begin_call;
use crate::launch::{Addresses, Launch, Refusal, Site};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use overdrive_ir::DType;
use overdrive_ir::plan::GemmCall;
use std::sync::Arc;

/// The choice to launch products so.
pub(super) const BESIDE: &str = "beside";

/// Workspaces begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// Whether products like this one gain by it. Those on multiply-adds do: their kernels take long
/// enough to pay for the events, and no kernel of ours computes them in one grid.
pub(super) fn takes(call: &GemmCall) -> bool {
    matches!(call.lhs.dtype, DType::F32 | DType::F64) && call.lhs.dtype == call.rhs.dtype
}

/// Compiles each product in its own best way.
///
/// # Errors
/// Those of `compile` for one product, and the driver's when it creates streams.
pub(super) fn compile(site: &Site<'_>, calls: &[GemmCall]) -> Result<Box<dyn Launch>, Refusal> {
    let compiled =
        calls.iter().map(|call| super::compile(site, call)).collect::<Result<Vec<_>, _>>()?;
    let context = site.device.context();
    let event =
        || context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(Error::from);
    let mut workspace_bytes = 0;
    let mut lanes = Vec::with_capacity(compiled.len());
    for launch in compiled {
        let workspace = workspace_bytes;
        workspace_bytes += aligned(launch.workspace_bytes());
        // The first stays where it is.
        let aside = match lanes.is_empty() {
            true => None,
            false => Some((context.new_stream().map_err(Error::from)?, event()?)),
        };
        lanes.push(ConcurrentProduct { launch, workspace, aside });
    }
    Ok(Box::new(Beside { lanes, fork: event()?, workspace_bytes }))
}

/// The most scratch of products as one launch, in bytes: only those beside each other take any.
pub(crate) fn scratch_of_all(calls: &[GemmCall]) -> usize {
    match calls.first().is_some_and(takes) {
        true => calls.iter().map(|call| aligned(scratch_bytes(call))).sum(),
        false => 0,
    }
}

/// Bytes from one workspace to the next.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// One of the products.
struct ConcurrentProduct {
    launch: Box<dyn Launch>,
    /// Offset of its scratch in the common scratch, in bytes.
    workspace: usize,
    /// Its stream, and the event that says it is done; none of the one on the stream of the call.
    aside: Option<(Arc<CudaStream>, CudaEvent)>,
}

struct Beside {
    lanes: Vec<ConcurrentProduct>,
    fork: CudaEvent,
    workspace_bytes: usize,
}

impl Launch for Beside {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        self.fork.record(stream)?;
        for lane in &self.lanes {
            let at = addresses.with_workspace(lane.workspace);
            // Kernels that let the next one in early know the order of one stream only.
            begin_call();
            let Some((aside, done)) = &lane.aside else {
                lane.launch.launch(stream, &at)?;
                continue;
            };
            aside.wait(&self.fork)?;
            lane.launch.launch(aside, &at)?;
            done.record(aside)?;
        }
        begin_call();
        let mut others = self.lanes.iter().filter_map(|lane| lane.aside.as_ref());
        others.try_for_each(|(_, done)| Ok(stream.wait(done)?))
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }
}
