//! `CompiledAttention`: the launch of a kernel of attention that takes addresses, a shape and
//! captured tensors.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{KernelCall, SlotId};

use super::decode_long::LongCut;
use super::shape::AttentionShape;
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::kernels::nest::ViewStart;
use crate::launch::{Addresses, Launch, Site};
use crate::memory::DeviceBytes;

/// A compiled attention.
#[derive(Debug)]
pub(super) struct CompiledAttention {
    entry: Entry,
    is_empty: bool,
    shape: AttentionShape,
    /// q, k, v, and scales of k and v that are codes.
    operands: Vec<ViewStart>,
    results: [Option<ViewStart>; 2],
    captures: Vec<SlotId>,
    exchange: Option<Exchange>,
}

/// How blocks of `decode_long.cu` exchange partial results.
#[derive(Debug)]
struct Exchange {
    /// Bytes of the step's scratch.
    scratch_bytes: usize,
    /// Counts of blocks, if several share a task. Each launch leaves zeros.
    tickets: Option<DeviceBytes>,
}

impl CompiledAttention {
    /// A call of so many operands before its captures.
    pub(super) fn new(
        call: &KernelCall,
        own: usize,
        (entry, is_empty, shape): (Entry, bool, AttentionShape),
    ) -> Self {
        let (operands, captures) = call.operands.split_at(own);
        Self {
            entry,
            is_empty,
            shape,
            operands: operands.iter().map(ViewStart::new).collect(),
            results: [0, 1].map(|i| call.results[i].as_ref().map(ViewStart::new)),
            captures: captures.iter().map(|view| view.slot).collect(),
            exchange: None,
        }
    }

    /// The same by `decode_long.cu`.
    pub(super) fn long(
        site: &Site<'_>,
        (call, own): (&KernelCall, usize),
        (source, cut): (&KernelSource, LongCut),
        shape: AttentionShape,
    ) -> Result<Self, Error> {
        let config = LaunchConfig {
            grid_dim: (cut.blocks() as u32, 1, 1),
            block_dim: (cut.threads(), 1, 1),
            shared_mem_bytes: cut.shared_bytes() as u32,
        };
        let entry = Entry::new(site.device, (source, "attention"), config)?;
        let tickets = Some(cut.ticket_bytes()).filter(|&bytes| bytes > 0);
        let tickets = tickets.map(|bytes| DeviceBytes::new(site.device, bytes)).transpose()?;
        tickets.iter().try_for_each(|tickets| tickets.fill(0))?;
        let exchange = Some(Exchange { scratch_bytes: cut.scratch_bytes(), tickets });
        Ok(Self { exchange, ..Self::new(call, own, (entry, false, shape)) })
    }
}

impl Launch for CompiledAttention {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        if self.is_empty {
            return Ok(());
        }
        let operands = self.operands.iter().map(|place| place.of(addresses));
        let results = self.results.map(|place| place.map_or(0, |place| place.of(addresses)));
        let captures = self.captures.iter().map(|&slot| addresses.of(slot));
        let exchange = self.exchange.iter().flat_map(|exchange| {
            let tickets = exchange.tickets.as_ref().map_or(0, DeviceBytes::address);
            [addresses.workspace(), tickets]
        });
        let mut places: Vec<u64> =
            operands.chain(results).chain(captures).chain(exchange).collect();
        let mut shape = self.shape;
        let mut parameters: Vec<*mut c_void> =
            places.iter_mut().map(|place| (place as *mut u64).cast()).collect();
        parameters.insert(self.operands.len() + results.len(), (&raw mut shape).cast());
        // SAFETY: the parameters are those of the kernel, which keeps to the rows of the shape, to
        // the scratch and to the tickets.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }

    fn workspace_bytes(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.scratch_bytes)
    }
}
