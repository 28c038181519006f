//! The kernel for products of few columns (the last layer of a classifier). No tile of matrix units
//! fits them, and TMA takes only rows whose bytes are a multiple of 16.

use super::epilogue::{self, PrintedEpilogue, is_printable};
use super::pointers::Pointers;
use super::problem::{SLOT_ALIGNMENT, alignment, sums};
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Launch, Refusal, Site};
use cudarc::driver::LaunchConfig;
use overdrive_ir::plan::{GemmCall, SlotId};

/// Most columns: their sums stay in registers.
const COLUMNS: usize = 16;
/// Threads of a block, and the terms of a sum that each adds up where there are enough.
const THREADS: [usize; 2] = [64, 512];
const TERMS: usize = 4;

/// Whether the kernel takes the call.
pub(super) fn applies(call: &GemmCall) -> bool {
    let batch: usize = call.batch.iter().product();
    call.n <= COLUMNS
        && call.m <= i32::MAX as usize
        && batch <= u32::MAX as usize
        && is_printable(&call.epilogue.0)
}

fn threads(call: &GemmCall) -> usize {
    (call.k / TERMS).next_power_of_two().clamp(THREADS[0], THREADS[1])
}

/// The source of the kernel for a call, and the buffers of its epilogue.
pub(super) fn source(call: &GemmCall) -> (KernelSource, Vec<SlotId>) {
    let PrintedEpilogue { text, slots } = epilogue::print(call);
    let others: Vec<i64> =
        call.rhs.batch_strides.iter().copied().chain([call.rhs.row_stride]).collect();
    let bytes = alignment(call.rhs.dtype, call.rhs.offset, &others).min(16).min(SLOT_ALIGNMENT);
    let aligned = (bytes as usize * 8 / call.rhs.dtype.bits()).max(1);
    // As many as divide a row.
    let at_once = aligned.min(1 << call.n.trailing_zeros());
    let mut defines = epilogue::defines(call, sums(call));
    defines.extend([("THREADS", threads(call).to_string()), ("AT_ONCE", at_once.to_string())]);
    (epilogue::source("gemm_narrow", &defines, &(text + include_str!("kernels/narrow.cu"))), slots)
}

/// Compiles the kernel; `None` where it does not apply.
pub(super) fn compile(
    site: &Site<'_>,
    call: &GemmCall,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    if !applies(call) {
        return Ok(None);
    }
    let (source, slots) = source(call);
    let batch: usize = call.batch.iter().product();
    let config = LaunchConfig {
        grid_dim: (call.m as u32, batch.min(65535) as u32, 1),
        block_dim: (threads(call) as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    let entry = Entry::new(site.device, (&source, "gemm_narrow"), config)?;
    Ok(Some(Box::new(Pointers::new(entry, call, slots))))
}
