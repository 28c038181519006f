//! The most scratch that a product takes, before it is known which candidate computes it.
//!
//! Tuning chooses later, among candidates that all keep to it. A product by cuBLASLt may take the
//! library's workspace, and sums may wait for an epilogue that it does not have. Kernels of ours
//! take none, unless they cannot store the results.

use super::candidate::halves_of;
use super::epilogue::is_printable;
use super::vendor;
use overdrive_ir::Plan;
use overdrive_ir::plan::GemmCall;

/// Bytes of scratch that a product takes at most.
pub(crate) fn scratch_bytes(call: &GemmCall) -> usize {
    if call.epilogue.0.points() == 0 {
        return 0;
    }
    if vendor::takes(call) {
        return vendor::WORKSPACE_BYTES;
    }
    let halves = halves_of(&Plan::default(), call);
    match vendor::knows(&halves.product) {
        true => halves.scratch_bytes() + vendor::WORKSPACE_BYTES,
        false if is_printable(&call.epilogue.0) => 0,
        false => halves.scratch_bytes(),
    }
}
