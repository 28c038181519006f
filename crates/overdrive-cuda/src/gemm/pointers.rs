//! A product kernel that reads its operands through plain pointers: its launch is the same whatever
//! the kernel does.

use crate::Error;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch};
use cudarc::driver::CudaStream;
use overdrive_ir::plan::{GemmCall, SlotId};
use std::ffi::c_void;
use std::sync::Arc;

/// A compiled kernel with parameters `(lhs, rhs, Slots)`.
pub(super) struct Pointers {
    entry: Entry,
    lhs: SlotId,
    rhs: SlotId,
    slots: Vec<SlotId>,
}

impl Pointers {
    /// The launch of `entry` for a call; `slots` are the buffers of its epilogue, as many as
    /// `Slots` has.
    pub(super) fn new(entry: Entry, call: &GemmCall, slots: Vec<SlotId>) -> Self {
        Self { entry, lhs: call.lhs.slot, rhs: call.rhs.slot, slots }
    }
}

impl Launch for Pointers {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let (mut lhs, mut rhs) = (addresses.of(self.lhs), addresses.of(self.rhs));
        let mut slots: Vec<u64> = self.slots.iter().map(|&s| addresses.of(s)).collect();
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut lhs).cast(), (&raw mut rhs).cast(), slots.as_mut_ptr().cast()];
        // SAFETY: the kernel takes two addresses, and as many as `Slots` has.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
