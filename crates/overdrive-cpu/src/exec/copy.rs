//! Plain copies: a slot to another of equal size.
#![allow(unsafe_code)] // Copies between addresses of the slot table.

use overdrive_ir::plan::Step;
use overdrive_ir::{Plan, SlotId};

use super::runnable::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Bytes of a task: long enough to be worth a thread's while.
const CHUNK: usize = 1 << 20;

/// All bytes of a slot to another.
#[derive(Debug)]
pub(super) struct SlotCopy {
    from: SlotId,
    to: SlotId,
    bytes: usize,
}

impl SlotCopy {
    pub(super) fn new(from: SlotId, to: SlotId, bytes: usize) -> Self {
        Self { from, to, bytes }
    }

    /// The copy that a step of two slots asks for.
    pub(super) fn of_step(plan: &Plan, step: &Step) -> Self {
        let (from, to) = (step.reads[0], step.writes[0]);
        let bytes = plan.slot(from).bytes();
        assert_eq!(bytes, plan.slot(to).bytes(), "a copy is between slots of equal size");
        Self { from, to, bytes }
    }
}

impl Runnable for SlotCopy {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if slots.get(self.from) == slots.get(self.to) {
            return;
        }
        pool.run(self.bytes.div_ceil(CHUNK), |task, _| {
            let start = task * CHUNK;
            let len = (self.bytes - start).min(CHUNK);
            // SAFETY: both slots have `bytes` bytes, chunks are disjoint, and so are the slots.
            unsafe {
                let from = slots.get(self.from).add(start);
                slots.get(self.to).add(start).copy_from_nonoverlapping(from, len);
            }
        });
    }
}
