//! `SlotTable`: where each slot of a plan lies while a call runs.
//!
//! One pointer per slot, entered before the first step that touches it. Steps are compiled once
//! against slot ids and look addresses up when they run, so that the same compiled step serves any
//! caller's buffers. Invariant (of plans, see `overdrive_ir::plan`): two slots share bytes only
//! where a step says that it works in place.
#![allow(unsafe_code)] // Slices over addresses that the executor entered.

use overdrive_ir::SlotId;

/// Addresses by slot; null for a slot that has no memory now.
#[derive(Debug)]
pub struct SlotTable(Vec<*mut u8>);

// SAFETY: the table is addresses; who reads or writes through them answers for it.
unsafe impl Send for SlotTable {}
// SAFETY: sharing addresses touches no memory behind them.
unsafe impl Sync for SlotTable {}

impl SlotTable {
    /// A table of `count` slots without memory.
    pub fn new(count: usize) -> Self {
        Self(vec![std::ptr::null_mut(); count])
    }

    /// Takes over the addresses of another table, with its memory where it has as much.
    pub(crate) fn clone_from(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    /// Enters where a slot lies.
    pub fn set(&mut self, slot: SlotId, start: *mut u8) {
        self.0[slot.0 as usize] = start;
    }

    /// Address of a slot.
    pub fn get(&self, slot: SlotId) -> *mut u8 {
        self.0[slot.0 as usize]
    }

    /// The first `len` elements of a slot.
    ///
    /// # Safety
    /// The slot has memory for them, they are valid as `T`, and nobody writes them while the slice
    /// lives.
    pub unsafe fn slice<T>(&self, slot: SlotId, len: usize) -> &[T] {
        if len == 0 {
            return &[];
        }
        // SAFETY: the slot has memory for `len` elements, valid as `T`, which nobody writes while
        // the slice lives.
        unsafe { std::slice::from_raw_parts(self.get(slot).cast(), len) }
    }

    /// The first `len` elements of a slot, to write.
    ///
    /// # Safety
    /// As for [`slice`](Self::slice), and nobody else reads or writes them while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the table owns no bytes: it only knows where they are"
    )]
    pub unsafe fn slice_mut<T>(&self, slot: SlotId, len: usize) -> &mut [T] {
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the slot has memory for `len` elements, valid as `T`, and nobody else has them
        // while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.get(slot).cast(), len) }
    }
}
