//! Fused loops: a `Program` compiled by `loops`.
#![allow(unsafe_code)] // The loop trusts the addresses of the slot table.

use overdrive_ir::Plan;
use overdrive_ir::plan::Program;

use super::runnable::{Runnable, Unsupported};
use crate::loops::CompiledLoop;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A fused loop.
#[derive(Debug)]
pub(super) struct FusedLoop(CompiledLoop);

impl FusedLoop {
    pub(super) fn new(plan: &Plan, program: &Program) -> Result<Self, Unsupported> {
        let compiled = CompiledLoop::new(program, &|slot| plan.slot(slot).ty.dtype);
        compiled.map(Self).map_err(|e| Unsupported::new(e.to_string()))
    }
}

impl Runnable for FusedLoop {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the executor entered all of the step's slots; the plan keeps reads and writes of
        // steps apart.
        unsafe { self.0.run(pool, slots) }
    }
}
