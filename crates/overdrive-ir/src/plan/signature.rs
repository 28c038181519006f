//! The arguments that the caller of an executable passes. They are checked against the plan, and
//! placed in the table of addresses that the back end keeps.
//!
//! Every output and every state has a *home* besides its slots in the plan. A home is a slot past
//! the plan's own, to which the executor copies what the plan left elsewhere. Invariant: once
//! `enter` has returned `Ok`, every input, output and state slot, homes included, has a place. That
//! place is the address of a buffer of exactly its bytes.

use super::{Plan, SlotId, SlotPlace};
use crate::backend::Memory;
use crate::{Arguments, BackendError, Buffer, TensorType};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that steps reach by an address, and that tells when it was written.
pub trait Addressed: Memory {
    /// The address type that a step reaches bytes by.
    type Address: Copy;
    /// The address of the bytes.
    fn address(&self) -> Self::Address;
    /// Equal at two times exactly when nothing was written between them; unique in the process.
    fn stamp(&self) -> u64;
    /// Says that the bytes are about to change.
    fn touch(&mut self);
}

/// A stamp that nothing else in the process has, so that a buffer that took another's place is
/// recognised too. Never 0.
pub fn new_stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A buffer that the plan expects, and the slots that are it, its home first where it has one.
#[derive(Debug)]
struct Expected {
    name: String,
    ty: TensorType,
    slots: Vec<SlotId>,
}

/// Everything that a call is to be passed.
#[derive(Debug)]
pub struct Signature {
    inputs: Vec<Expected>,
    outputs: Vec<Expected>,
    /// Sorted by name, as `State` is.
    states: Vec<Expected>,
    /// Per state, whether a call changes it.
    changes: Vec<bool>,
    /// Per state, its stamp at the start of the present call.
    stamps: Vec<u64>,
    /// Slots of the plan and homes.
    slot_count: usize,
}

impl Signature {
    /// `inputs` and `outputs` are the names that users see.
    pub fn new(plan: &Plan, inputs: &[String], outputs: &[String]) -> Self {
        let mut slot_count = plan.slots.len();
        let at = |place: &SlotPlace| -> Vec<SlotId> {
            let ids = (0..plan.slots.len() as u32).map(SlotId);
            ids.filter(|&id| plan.slot(id).place == *place).collect()
        };
        let mut homed = |slots: Vec<SlotId>| {
            slot_count += 1;
            [SlotId(slot_count as u32 - 1)].into_iter().chain(slots).collect()
        };
        let expected = |name: &str, like: SlotId, slots: Vec<SlotId>| Expected {
            name: name.to_owned(),
            ty: plan.slot(like).ty.clone(),
            slots,
        };
        let names = inputs.iter().zip(&plan.inputs).enumerate();
        let inputs = names
            .map(|(i, (name, &slot))| expected(name, slot, at(&SlotPlace::Input(i))))
            .collect();
        let names = outputs.iter().zip(&plan.outputs).enumerate();
        let outputs = names
            .map(|(i, (name, &slot))| expected(name, slot, homed(at(&SlotPlace::Output(i)))))
            .collect();
        let state_of = |slot: &super::Slot| match &slot.place {
            SlotPlace::State(name) => Some(name.clone()),
            _ => None,
        };
        let mut names: Vec<String> = plan.slots.iter().filter_map(state_of).collect();
        names.sort_unstable();
        names.dedup();
        let mut states = Vec::new();
        for name in &names {
            let slots = at(&SlotPlace::State(name.clone()));
            states.push(expected(name, slots[0], homed(slots)));
        }
        let changes: Vec<bool> =
            names.iter().map(|n| plan.updates.iter().any(|u| u.0 == *n)).collect();
        let stamps = vec![0; states.len()];
        Self { inputs, outputs, states, changes, stamps, slot_count }
    }

    /// Slots of the plan, and homes after them.
    pub fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// The caller's own buffer for output `index`.
    fn output_home(&self, index: usize) -> SlotId {
        self.outputs[index].slots[0]
    }

    /// The caller's own buffer for the state of this name.
    fn state_home(&self, name: &str) -> SlotId {
        let state = self.states.iter().find(|state| state.name == name);
        state.expect("a state that is updated has a slot").slots[0]
    }

    /// Names of the states that the plan touches, in the order of `stamps`.
    pub fn state_names(&self) -> Vec<&str> {
        self.states.iter().map(|state| state.name.as_str()).collect()
    }

    /// Stamps of the states at the start of the present call.
    pub fn stamps(&self) -> &[u64] {
        &self.stamps
    }

    /// Checks a call's buffers and hands `place` the address of each slot that they are.
    ///
    /// # Errors
    /// `Mismatch` naming the first argument that is missing, of another type or of another back
    /// end.
    pub fn enter<M: Addressed>(
        &mut self,
        Arguments { state, inputs, outputs }: Arguments<'_>,
        mut place: impl FnMut(SlotId, M::Address),
    ) -> Result<(), BackendError> {
        BackendError::check_count("inputs", self.inputs.len(), inputs.len())?;
        BackendError::check_count("outputs", self.outputs.len(), outputs.len())?;
        for (expected, buffer) in self.inputs.iter().zip(inputs) {
            let memory = readable::<M>("input", expected, buffer)?;
            expected.slots.iter().for_each(|&slot| place(slot, memory.address()));
        }
        for (expected, buffer) in self.outputs.iter().zip(outputs) {
            let memory = writable::<M>("output", expected, buffer)?;
            memory.touch();
            expected.slots.iter().for_each(|&slot| place(slot, memory.address()));
        }
        // All are sorted by name: one walk finds each, and a table of hundreds needs no search.
        let mut own = state.buffers.iter_mut().peekable();
        let mut shared = state.weights.iter().peekable();
        for (index, expected) in self.states.iter().enumerate() {
            while own.next_if(|(name, _)| **name < expected.name).is_some() {}
            while shared.next_if(|(name, _)| **name < expected.name).is_some() {}
            let (stamp, address);
            if let Some((_, buffer)) = own.next_if(|(name, _)| **name == expected.name) {
                let memory = writable::<M>("state", expected, buffer)?;
                (stamp, address) = (memory.stamp(), memory.address());
                if self.changes[index] {
                    memory.touch();
                }
            } else if let Some((_, buffer)) = shared.next_if(|(name, _)| **name == expected.name) {
                if self.changes[index] {
                    let found = "one that sessions share, which no call may change";
                    return Err(mismatch("state", expected, found));
                }
                let memory = readable::<M>("state", expected, buffer)?;
                (stamp, address) = (memory.stamp(), memory.address());
            } else {
                return Err(mismatch("state", expected, "no state of this name"));
            }
            self.stamps[index] = stamp;
            expected.slots.iter().for_each(|&slot| place(slot, address));
        }
        Ok(())
    }

    /// Copies after the last step: from each slot where the plan left a result to the home where
    /// the caller has it.
    pub fn deliveries(&self, plan: &Plan) -> Vec<(SlotId, SlotId)> {
        let results = plan.outputs.iter().enumerate();
        let outputs =
            results.map(|(index, &slot)| (slot, SlotPlace::Output(index), self.output_home(index)));
        let states = plan.updates.iter().map(|(name, _, new)| {
            let own = SlotPlace::State(name.clone());
            let elsewhere = plan.slot(*new).place != own
                && matches!(plan.slot(*new).place, SlotPlace::State(_));
            assert!(
                !elsewhere,
                "a new state does not wait in the buffer of another, which may be overwritten first"
            );
            (*new, own, self.state_home(name))
        });
        let moved = outputs.chain(states).filter(|(slot, own, _)| plan.slot(*slot).place != *own);
        moved.map(|(slot, _, home)| (slot, home)).collect()
    }
}

fn mismatch(kind: &str, expected: &Expected, found: impl Into<String>) -> BackendError {
    let what = format!("{kind} `{}`", expected.name);
    BackendError::Mismatch { what, expected: expected.ty.to_string(), found: found.into() }
}

fn foreign(kind: &str, expected: &Expected) -> BackendError {
    mismatch(kind, expected, "a buffer of another back end")
}

fn check_type(kind: &str, expected: &Expected, buffer: &Buffer) -> Result<(), BackendError> {
    if buffer.ty == expected.ty {
        return Ok(());
    }
    Err(mismatch(kind, expected, buffer.ty.to_string()))
}

fn readable<'b, M: Addressed>(
    kind: &str,
    expected: &Expected,
    buffer: &'b Buffer,
) -> Result<&'b M, BackendError> {
    check_type(kind, expected, buffer)?;
    buffer.memory.as_any().downcast_ref().ok_or_else(|| foreign(kind, expected))
}

fn writable<'b, M: Addressed>(
    kind: &str,
    expected: &Expected,
    buffer: &'b mut Buffer,
) -> Result<&'b mut M, BackendError> {
    check_type(kind, expected, buffer)?;
    buffer.memory.as_any_mut().downcast_mut().ok_or_else(|| foreign(kind, expected))
}
