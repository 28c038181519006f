//! Copies of everything that a call touches, so that calls in a row each find cold caches.
//!
//! A flush empties the cache before the first of several captured calls, but not before the second,
//! which would find the weights of the first. With buffers of its own each call reads what nobody
//! read since the flush. Invariant: a copy shares no byte with the original or with another copy.

use super::enqueuer::Enqueuer;
use super::storage::arenas;
use crate::Error;
use crate::launch::Addresses;
use crate::memory::{CudaMemory, DeviceBytes, SpaceBytes};
use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::plan::SlotPlace;
use overdrive_ir::{Arguments, Mode, SlotId};
use std::collections::BTreeMap;

/// Addresses and sizes of the caller's buffers in device memory. Those of the host are in no cache
/// that a flush empties.
pub(super) fn passed(call: &Arguments<'_>) -> BTreeMap<CUdeviceptr, usize> {
    let states = call.state.buffers.values().chain(call.state.weights.values());
    let buffers = call.inputs.iter().chain(&*call.outputs).chain(states);
    let memories = buffers.filter_map(|buffer| buffer.memory.as_any().downcast_ref::<CudaMemory>());
    let on_device = memories.filter_map(|memory| match memory.block() {
        SpaceBytes::Device(bytes) => Some((bytes.address(), bytes.len())),
        SpaceBytes::Pinned(_) => None,
    });
    on_device.collect()
}

/// Buffers of a call's own.
pub(super) struct Copies {
    /// The address of each slot among them.
    pub(super) addresses: Addresses,
    /// Keeps them.
    _blocks: Vec<SpaceBytes>,
}

impl Copies {
    /// No copies: the buffers that `enqueuer` has entered and keeps; in eager mode with an arena,
    /// since a capture holds on to addresses.
    pub(super) fn in_place(enqueuer: &Enqueuer) -> Result<Self, Error> {
        let mut addresses = enqueuer.addresses.clone();
        let blocks = match enqueuer.plan.mode {
            Mode::Eager => arenas(&enqueuer.device, &enqueuer.plan, &mut addresses, None)?,
            Mode::Jit | Mode::Compile | Mode::Graph => vec![],
        };
        Ok(Self { addresses, _blocks: blocks })
    }

    /// Copies of the buffers that `enqueuer` has entered and keeps, and a fresh arena. `passed`
    /// are the caller's.
    pub(super) fn new(
        enqueuer: &Enqueuer,
        passed: &BTreeMap<CUdeviceptr, usize>,
    ) -> Result<Self, Error> {
        let device = &enqueuer.device;
        let (plan, original) = (&enqueuer.plan, &enqueuer.addresses);
        let mut addresses = original.clone();
        let mut blocks = arenas(device, plan, &mut addresses, None)?;
        let kept = enqueuer.kept().map(|block| (block.address(), block.len()));
        let sources: BTreeMap<CUdeviceptr, usize> =
            passed.clone().into_iter().chain(kept).collect();
        let mut moved: BTreeMap<CUdeviceptr, CUdeviceptr> = BTreeMap::new();
        for index in 0..original.slots().len() {
            let slot = SlotId(index as u32);
            let is_arena =
                plan.slots.get(index).is_some_and(|s| matches!(s.place, SlotPlace::Arena { .. }));
            let at = original.of(slot);
            // The block that a slot lies in starts at or before it.
            let Some((&start, &len)) = sources.range(..=at).next_back().filter(|_| !is_arena)
            else {
                continue;
            };
            if at >= start + len.max(1) as u64 {
                continue;
            }
            let to = match moved.get(&start) {
                Some(&to) => to,
                None => {
                    let block = DeviceBytes::new(device, len)?;
                    let to = block.address();
                    if len > 0 {
                        // SAFETY: both blocks have this many bytes.
                        unsafe {
                            result::memcpy_dtod_async(to, start, len, device.stream().cu_stream())?
                        };
                    }
                    moved.insert(start, to);
                    blocks.push(SpaceBytes::Device(block));
                    to
                }
            };
            addresses.set(slot, to + (at - start));
        }
        Ok(Self { addresses, _blocks: blocks })
    }
}
