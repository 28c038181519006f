//! Host steps, which on this back end run where everything runs. They allocate: the exception that
//! the executor's promise names.
#![allow(unsafe_code)] // Slices over slots.

use std::borrow::Cow;
use std::convert::Infallible;

use overdrive_ir::Plan;
use overdrive_ir::plan::{HostCall, KernelCall};

use super::runnable::{Runnable, Unsupported};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// The f64 evaluation of one node.
#[derive(Debug)]
pub(super) struct Host(HostCall);

impl Host {
    pub(super) fn new(plan: &Plan, call: &KernelCall) -> Result<Self, Unsupported> {
        HostCall::new(plan, call).map(Self).map_err(Unsupported::new)
    }
}

impl Runnable for Host {
    fn run(&self, _: &Pool, slots: &SlotTable) {
        // SAFETY: the slot has this many bytes, an earlier step wrote them, and nothing else runs
        // now.
        let read =
            |slot, bytes| Ok::<_, Infallible>(Cow::Borrowed(unsafe { slots.slice(slot, bytes) }));
        let Ok(()) = self.0.run(read, |slot, bytes, store| {
            // SAFETY: the slot has this many bytes; operands have been read by now, and nothing
            // else runs.
            store(unsafe { slots.slice_mut(slot, bytes) });
            Ok(())
        });
    }
}
