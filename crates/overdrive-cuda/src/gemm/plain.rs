//! The plain kernel: every product of whole-byte types, whatever its strides, with the epilogue in
//! registers.

use super::epilogue::{self, PrintedEpilogue};
use super::pointers::Pointers;
use super::problem::sums;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Launch, Refusal, Site};
use cudarc::driver::LaunchConfig;
use overdrive_ir::plan::{GemmCall, SlotId};

/// Rows and columns of sums that a block has.
const TILE: usize = 64;

/// The source of the kernel for a call, and the buffers of its epilogue.
pub(super) fn source(call: &GemmCall) -> (KernelSource, Vec<SlotId>) {
    let PrintedEpilogue { text, slots } = epilogue::print(call);
    let defines = epilogue::defines(call, sums(call));
    (epilogue::source("gemm_plain", &defines, &(text + include_str!("kernels/plain.cu"))), slots)
}

/// Compiles the kernel for a call whose epilogue is printable.
pub(super) fn compile(site: &Site<'_>, call: &GemmCall) -> Result<Box<dyn Launch>, Refusal> {
    let (source, slots) = source(call);
    let tiles = call.m.div_ceil(TILE) as u64 * call.n.div_ceil(TILE) as u64;
    let blocks = u32::try_from(tiles).ok().filter(|&b| b <= i32::MAX as u32).ok_or_else(|| {
        Refusal::Unsupported(format!(
            "a product of {} by {} has more tiles than a grid",
            call.m, call.n
        ))
    })?;
    let batch: usize = call.batch.iter().product();
    // Blocks walk the batches beyond the limit of a grid's second dimension.
    let grid_dim = (blocks, batch.min(65535) as u32, 1);
    let config = LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    let entry = Entry::new(site.device, (&source, "gemm_plain"), config)?;
    Ok(Box::new(Pointers::new(entry, call, slots)))
}
